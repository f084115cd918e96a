"""The manifest's parts that come from a checkpoint's small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="exporting needs the extra `export`")

import tiny_checkpoint

from fastocr_trt.export import processing
from fastocr_trt.export.engine_directory import DEMO_POLICY
from fastocr_trt.export.families import family_of, qwen2_5_vl
from fastocr_trt.export.prompt import render_prompt
from fastocr_trt.export.quantize import quantize
from fastocr_trt.manifest import Manifest

QWEN_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ content['text'] }}{% endif %}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder without weights."""
    for name in tiny_checkpoint.SMALL_FILES:
        (tmp_path / name).write_bytes((tiny_checkpoint.DEMO / name).read_bytes())
    return tmp_path


def test_the_demo_engine_knows_the_demo(demo_engine_dir: Path) -> None:
    manifest = Manifest.read(demo_engine_dir)
    assert manifest.policy == DEMO_POLICY
    assert (manifest.prompt.image_before, manifest.prompt.image_after) == ("<|vision_start|>", "<|vision_end|>")
    assert (manifest.prompt.before, manifest.prompt.after) == ("", "{prompt}")
    assert manifest.prompt.default == "OCR:\n"
    assert manifest.generation.stop_token_ids == (98,)
    assert manifest.image_processing.max_pixels == 1003520
    assert manifest.capacities.max_visual_tokens == 1003520 // 28**2
    assert manifest.vision.window_size == 224


@pytest.mark.parametrize("place", ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"])
def test_the_prompt_of_a_qwen_template(folder: Path, place: str) -> None:
    (folder / "chat_template.jinja").unlink()
    if place == "chat_template.jinja":
        (folder / place).write_text(QWEN_TEMPLATE)
    else:
        known = json.loads((folder / place).read_text()) if (folder / place).exists() else {}
        (folder / place).write_text(json.dumps(known | {"chat_template": QWEN_TEMPLATE}))
    prompt = render_prompt(folder, processing.load_tokenizer(folder), 102, "Read.")
    assert prompt.before == "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
    assert (prompt.image_before, prompt.image_after) == ("<|vision_start|>", "<|vision_end|>")
    assert prompt.after == "{prompt}<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.default == "Read."


def test_image_processing_in_its_older_and_newer_form(folder: Path) -> None:
    vision = qwen2_5_vl.vision_shape(tiny_checkpoint.config())
    path = folder / "preprocessor_config.json"
    newer = processing.image_processing(folder, vision)
    data = json.loads(path.read_text())
    size = data.pop("size")
    older = data | {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
    path.write_text(json.dumps(older))
    assert processing.image_processing(folder, vision) == newer
    path.rename(folder / "aside")
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": older}))
    assert processing.image_processing(folder, vision) == newer


@pytest.mark.parametrize(
    ("generation_config", "expected"),
    [({"eos_token_id": 98}, (98,)), ({"eos_token_id": [98, 97]}, (98, 97)), ({}, (98, 96)), (None, (98, 96))],
)
def test_stop_ids(folder: Path, generation_config: dict | None, expected: tuple[int, ...]) -> None:
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    tokenizer = processing.load_tokenizer(folder)
    assert processing.generation(folder, tiny_checkpoint.config(), tokenizer).stop_token_ids == expected


def test_a_tokenizer_is_made_where_there_are_only_older_files(folder: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = processing.load_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    output = tmp_path / "output"
    output.mkdir()
    processing.write_tokenizer(folder, tokenizer, output)
    made = Tokenizer.from_file(str(output / "tokenizer.json"))
    assert made.encode("a B\n1").ids == tokenizer("a B\n1")["input_ids"]


def test_names_of_older_checkpoints() -> None:
    names = {
        "visual.blocks.0.attn.qkv.weight": "model.visual.blocks.0.attn.qkv.weight",
        "model.layers.3.mlp.up_proj.weight": "model.language_model.layers.3.mlp.up_proj.weight",
        "model.embed_tokens.weight": "model.language_model.embed_tokens.weight",
        "model.language_model.norm.weight": "model.language_model.norm.weight",
        "model.visual.merger.mlp.0.bias": "model.visual.merger.mlp.0.bias",
        "lm_head.weight": "lm_head.weight",
    }
    assert {name: qwen2_5_vl.parameter_name(name) for name in names} == names


def test_both_generations_are_one_family() -> None:
    assert family_of("qwen2_vl", "somewhere") is family_of("qwen2_5_vl", "somewhere") is qwen2_5_vl


@pytest.mark.parametrize(("bits", "levels"), [(4, 16), (8, 256)])
@pytest.mark.parametrize("width", [64, 40])
def test_quantised_blocks_are_within_a_step(bits: int, levels: int, width: int) -> None:
    """Dequantised by the definition of MatMulNBits: (packed - 2**(bits-1)) * scale, blocks of 32 along the input."""
    import torch

    weight = torch.randn(6, width, generator=torch.Generator().manual_seed(0))
    packed, scales = quantize(weight, bits)
    blocks = -(-width // 32)
    assert packed.shape == (6, blocks, 32 * bits // 8)
    assert scales.shape == (6, blocks)
    values = torch.stack([packed & 15, packed >> 4], -1).flatten(-2) if bits == 4 else packed
    back = ((values.float() - levels // 2) * scales.unsqueeze(-1)).flatten(1)[:, :width]
    step = scales.abs().repeat_interleave(32, 1)[:, :width]
    assert ((back - weight).abs() <= 1.01 * step).all()  # a whole step at the end of the range, else half a step
