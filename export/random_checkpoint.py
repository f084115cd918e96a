"""Checkpoints of a known shape with random weights: the speed of a model that is not at hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLConfig

from ..shapes import ModelShape
from .checkpoint import INDEX
from .families import qwen2_5_vl
from .source import DEMO, find_checkpoint

SHARD = 2**30  # bytes: what is held in memory while writing
NOISE = 2**24  # random numbers that all weights are cut from: drawing billions takes minutes, and speed is the same
_PROCESSOR_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "generation_config.json",
)


def random_config(shape: ModelShape) -> Qwen2_5_VLConfig:
    """A config of this shape with the demo's special tokens. The last vision block attends to the whole page, and in
    towers of 32 blocks every eighth, as in the real ones."""
    demo = Qwen2_5_VLConfig.from_pretrained(find_checkpoint(DEMO))
    depth = shape.vision_depth
    text = dict(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        vocab_size=shape.vocab_size,
        rms_norm_eps=1e-6,
        max_position_embeddings=128_000,
        rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=list(shape.mrope_section)),
        bos_token_id=None,
        eos_token_id=demo.text_config.eos_token_id,
        pad_token_id=demo.text_config.pad_token_id,
        tie_word_embeddings=shape.tied,
    )
    vision = dict(
        depth=depth,
        hidden_size=shape.vision_hidden_size,
        intermediate_size=shape.vision_intermediate_size,
        num_heads=shape.vision_num_heads,
        out_hidden_size=shape.hidden_size,
        window_size=112,
        fullatt_block_indexes=sorted({*range(7, depth, 8), depth - 1}),
    )
    tokens = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=shape.tied,
        **{token: getattr(demo, token) for token in tokens},
    )


def random_checkpoint(directory: Path, shape: ModelShape, seed: int = 0) -> Path:
    """Write a bf16 checkpoint with the demo's tokenizer into `directory`, shard by shard; returns `directory`.

    Matrices are normal with deviation 0.02, norms are 1 and biases 0.
    """
    config = random_config(shape)
    config.architectures = [qwen2_5_vl.MODEL_TYPES["qwen2_5_vl"]]
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    demo = find_checkpoint(DEMO)
    for name in _PROCESSOR_FILES:
        shutil.copy(demo / name, directory / name)
    noise = torch.randn(NOISE, generator=torch.Generator().manual_seed(seed)).mul_(0.02).to(torch.bfloat16)
    places: dict[str, str] = {}
    for number, names in enumerate(_shards(qwen2_5_vl.parameter_shapes(config).items())):
        file = f"model-{number:05}.safetensors"
        tensors = {name: _filled(name, size, noise, len(places) + i) for i, (name, size) in enumerate(names)}
        save_file(tensors, directory / file, metadata={"format": "pt"})
        places |= dict.fromkeys(tensors, file)
    index = {"metadata": {}, "weight_map": places}
    (directory / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return directory


def _shards(shapes: Iterable[tuple[str, tuple[int, ...]]]):
    """Lists of (name, shape) of about SHARD bytes each."""
    shard, held = [], 0
    for name, size in shapes:
        shard.append((name, size))
        held += 2 * torch.Size(size).numel()
        if held >= SHARD:
            yield shard
            shard, held = [], 0
    if shard:
        yield shard


def _filled(name: str, size: tuple[int, ...], noise: torch.Tensor, number: int) -> torch.Tensor:
    if len(size) == 1:
        return torch.full(size, 0.0 if name.endswith("bias") else 1.0, dtype=torch.bfloat16)
    count = torch.Size(size).numel()
    start = number * 7919 % len(noise)  # no two matrices alike
    repeats = -(-(start + count) // len(noise))
    return noise.repeat(repeats)[start : start + count].reshape(size).clone()
