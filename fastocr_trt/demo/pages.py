"""Seeded pages with known text, of the kind the demo reader was trained on.

A page is named by (seed, layout, visual_tokens) and comes out the same on every machine: the text follows from the
seed alone, and the font and the words are files beside this one. (Grey levels at the edges of a letter are those of
the FreeType that Pillow brings.)

Seeds are shared out so that nobody measures on pages that somebody trained on: see SEEDS.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image

from ..errors import FastOCRError
from . import layout_mono, layouts, layouts_variants
from .word_boxes import Drawn

TOKEN_PIXELS = 28  # side of one visual token: 2 x 2 patches of 14 pixels

SIZES: dict[int, tuple[int, int]] = {64: (8, 8), 128: (16, 8), 384: (24, 16), 768: (24, 32)}
"""visual_tokens -> (columns, rows) of visual tokens."""

SEEDS: dict[str, range] = {
    "examples": range(1_000),
    "tests": range(1_000, 10_000),
    "benchmarks": range(10_000, 90_000),
    "calibration": range(90_000, 100_000),
    "training": range(1_000_000, 1 << 62),
}
"""Disjoint seeds by purpose."""

Draw = Callable[[random.Random, int, int], Drawn]

LAYOUTS: dict[str, Draw] = {"mono": layout_mono.draw, **layouts.DRAW, **layouts_variants.DRAW}
"""Name -> function (random source, columns, rows of visual tokens) -> what is drawn, the text in reading order."""


class GeneratedPage(NamedTuple):
    """image: PIL, mode RGB, sides in multiples of 28 pixels. text: what it says, lines joined by a newline."""

    image: Image.Image
    text: str


def generate_page(seed: int, layout: str = "mono", visual_tokens: int = 768) -> GeneratedPage:
    """The page of this seed. FastOCRError where the layout, the size or the seed is not one there is."""
    drawn = draw_page(seed, layout, visual_tokens)
    return GeneratedPage(drawn.image, drawn.text)


def draw_page(seed: int, layout: str, visual_tokens: int) -> Drawn:
    """`generate_page`'s page, and where its characters are."""
    if layout not in LAYOUTS:
        raise FastOCRError(f"there is no layout {layout!r}; there are {sorted(LAYOUTS)}")
    if visual_tokens not in SIZES:
        raise FastOCRError(f"there are no pages of {visual_tokens} visual tokens; there are {sorted(SIZES)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise FastOCRError(f"seed is {seed!r}; it must be a whole number of at least 0")
    # A string is hashed by SHA-512: the same stream on every machine, and unlike streams for like seeds.
    source = random.Random(f"{layout} {visual_tokens} {seed}")
    return LAYOUTS[layout](source, *SIZES[visual_tokens])
