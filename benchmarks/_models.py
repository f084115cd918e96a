"""Random checkpoints of the Qwen2.5-VL-3B shape, engines made of them, and decoder sessions with filled caches."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np

from fastocr_trt.manifest import Manifest
from fastocr_trt.runtime.onnxruntime_session import OnnxRuntimeSession

DEMO = Path(__file__).parents[1] / "fastocr_trt" / "demo"
_PROCESSOR_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "generation_config.json",
)


def random_checkpoint(directory: Path, layers: int, vision_blocks: int, small: bool = False) -> Path:
    """Write a checkpoint with random bf16 weights and the demo's tokenizer; returns `directory`.

    Widths are those of Qwen2.5-VL-3B (hidden 2048, MLP 11008, 16 query and 2 KV heads of 128, vocabulary 151936;
    vision hidden 1280), cut to `layers` decoder layers and `vision_blocks` blocks, the last of which attends to the
    whole page. small: an eighth as wide, for smoke runs.
    """
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration

    config = random_config(layers, vision_blocks, small)
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(directory)
    for name in _PROCESSOR_FILES:
        shutil.copy(DEMO / name, directory / name)
    return directory


def random_config(layers: int, vision_blocks: int, small: bool = False):
    """The config of such a checkpoint."""
    from transformers import Qwen2_5_VLConfig

    demo = Qwen2_5_VLConfig.from_pretrained(DEMO)
    width = 256 if small else 2048
    text = dict(
        hidden_size=width,
        intermediate_size=512 if small else 11008,
        num_hidden_layers=layers,
        num_attention_heads=4 if small else 16,
        num_key_value_heads=2,
        vocab_size=512 if small else 151_936,
        rms_norm_eps=1e-6,
        max_position_embeddings=128_000,
        rope_parameters=dict(rope_type="default", rope_theta=1e6, mrope_section=[8, 12, 12] if small else [16, 24, 24]),
        bos_token_id=None,
        eos_token_id=demo.text_config.eos_token_id,
        pad_token_id=demo.text_config.pad_token_id,
        tie_word_embeddings=True,
    )
    vision = dict(
        depth=vision_blocks,
        hidden_size=128 if small else 1280,
        intermediate_size=320 if small else 3420,
        num_heads=4 if small else 16,
        out_hidden_size=width,
        window_size=112,
        fullatt_block_indexes=[vision_blocks - 1],
    )
    tokens = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        **{token: getattr(demo, token) for token in tokens},
    )


class FilledSession(OnnxRuntimeSession):
    """A decoder session that starts from caches full of random rows, as if a prompt had been read."""

    def fill(self, visual_rows: int, text_rows: int, num_fixations: int) -> None:
        """Begin a batch of one page whose prompt has `visual_rows` and `text_rows` rows, its last token yet to feed."""
        shape = self.manifest.decoder
        source = np.random.default_rng(0)
        self.begin(np.zeros((1, shape.hidden_size), np.float32), np.array([num_fixations], np.int64))
        for _, value in self._cache.items():
            rows = value.numpy()
            rows[...] = source.standard_normal(rows.shape, np.float32)
        self._visual_length = np.array([visual_rows])
        self._text_length = np.array([text_rows - 1])
        last = np.full((3, 1, 1), visual_rows + text_rows)
        self.finish_prefill(np.zeros((1, 1), np.int64), last)


def filled_session(
    directory: Path, threads: int, visual_rows: int, text_rows: int, num_fixations: int, **capacities: int
) -> FilledSession:
    """A FilledSession on an engine directory; `capacities` replace the manifest's (the graphs do not know them)."""
    manifest = Manifest.read(directory)
    limits = dataclasses.replace(manifest.capacities, **capacities)
    session = FilledSession(directory, dataclasses.replace(manifest, capacities=limits), "cpu", threads)
    session.fill(visual_rows, text_rows, num_fixations)
    return session
