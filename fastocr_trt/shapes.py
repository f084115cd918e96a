"""Shapes of known models, for engines with random weights, and how much memory they take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import FastOCRError
from .manifest import DecoderShape

ITEM_SIZE = {"fp32": 4, "fp16": 2, "bf16": 2}
QUANTISED_BITS = {"int4": 4, "int8": 8}
PATCH = 3 * 2 * 14 * 14  # numbers of a patch: channels, frames, rows, columns


@dataclass(frozen=True)
class ModelShape:
    """Widths and depths of a Qwen2.5-VL. head_dim is hidden_size / num_attention_heads.

    mrope_section: halves of head_dim that go by time, row and column. The vision tower's heads, patches and windows
    are the same in all of them.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tied: bool
    vision_depth: int = 32
    vision_hidden_size: int = 1280
    vision_intermediate_size: int = 3420
    vision_num_heads: int = 16
    mrope_section: tuple[int, int, int] = (16, 24, 24)

    def cut(self, num_layers: int) -> ModelShape:
        """With at most so many decoder layers and vision blocks."""
        return replace(self, num_layers=num_layers, vision_depth=min(num_layers, self.vision_depth))

    @property
    def decoder(self) -> DecoderShape:
        """As the manifest of an engine of this shape has it."""
        return DecoderShape(
            num_layers=self.num_layers,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.hidden_size // self.num_attention_heads,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
        )

    def parameters(self) -> tuple[int, int]:
        """(those that --weights quantises, all others): products of the decoder; embeddings and the vision tower."""
        width, inner = self.hidden_size, self.intermediate_size
        kv = self.num_key_value_heads * width // self.num_attention_heads
        layers = self.num_layers * (2 * width * (width + kv) + 3 * width * inner)
        vocabulary = width * self.vocab_size
        wide = self.vision_hidden_size
        tower = self.vision_depth * (4 * wide**2 + 3 * wide * self.vision_intermediate_size)
        tower += PATCH * wide + (4 * wide) * (4 * wide + width)
        return layers + (0 if self.tied else vocabulary), vocabulary + tower

    def engine_bytes(self, dtype: str, weights: str | None) -> int:
        """Of an engine's weights file, about."""
        products, others = self.parameters()
        size = ITEM_SIZE[dtype]
        per_product = size if weights is None else (QUANTISED_BITS[weights] + size / 4) / 8
        return int(products * per_product + others * size)


SHAPES = {
    "qwen2.5-vl-3b": ModelShape(36, 2048, 11008, 16, 2, 151_936, True),
    "qwen2.5-vl-7b": ModelShape(28, 3584, 18944, 28, 4, 152_064, False),
    "qwen2.5-vl-32b": ModelShape(64, 5120, 27648, 40, 8, 152_064, False, vision_intermediate_size=3456),
    "qwen2.5-vl-72b": ModelShape(80, 8192, 29568, 64, 8, 152_064, False, vision_intermediate_size=3456),
    "tiny": ModelShape(4, 256, 512, 4, 2, 640, True, 1, 128, 320, 4, (8, 12, 12)),
}
"""By the name that --shape takes. `tiny` is for trying the command out."""


def find_shape(name: str, num_layers: int | None = None) -> ModelShape:
    """The shape called `name`, cut to `num_layers`; FastOCRError lists the names, or tells how deep the model is."""
    if name not in SHAPES:
        raise FastOCRError(f"there is no shape {name!r}; known are {', '.join(SHAPES)}")
    shape = SHAPES[name]
    if num_layers is None:
        return shape
    if num_layers > shape.num_layers:
        raise FastOCRError(f"--layers is {num_layers} and {name} has {shape.num_layers}; give at most that many")
    return shape.cut(num_layers)
