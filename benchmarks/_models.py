"""Random checkpoints of the Qwen2.5-VL-3B shape, cut in depth, and decoder sessions with filled caches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fastocr_trt.bench.sessions import FilledSession, filled_session
from fastocr_trt.shapes import SHAPES, ModelShape

__all__ = ["DEMO", "FilledSession", "filled_session", "random_checkpoint", "random_config"]

DEMO = Path(__file__).parents[1] / "fastocr_trt" / "demo"


def random_checkpoint(directory: Path, layers: int, vision_blocks: int, small: bool = False) -> Path:
    """Write a checkpoint with random bf16 weights and the demo's tokenizer; returns `directory`.

    Widths are those of Qwen2.5-VL-3B, cut to `layers` decoder layers and `vision_blocks` blocks, the last of which
    attends to the whole page. small: an eighth as wide, for smoke runs.
    """
    from fastocr_trt.export.random_checkpoint import random_checkpoint

    return random_checkpoint(directory, _shape(layers, vision_blocks, small))


def random_config(layers: int, vision_blocks: int, small: bool = False):
    """The config of such a checkpoint."""
    from fastocr_trt.export.random_checkpoint import random_config

    return random_config(_shape(layers, vision_blocks, small))


def _shape(layers: int, vision_blocks: int, small: bool) -> ModelShape:
    return replace(SHAPES["tiny" if small else "qwen2.5-vl-3b"], num_layers=layers, vision_depth=vision_blocks)
