"""Layouts "column", "columns" and "table": pages set in three families, 14 to 28 pixels, with Markdown where they
have structure. Two columns are read down, then over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import NamedTuple

import numpy as np
from PIL import Image

from . import layouts_blocks as blocks
from .layouts_fonts import BUNDLED, Family, sheet
from .layouts_ink import Ink, Place
from .layouts_noise import print_page
from .word_boxes import Box, Drawn

FONT_SIZES = (14, 28)

# visual tokens -> most characters on a page; what lies between is the same per token
_MOST_CHARACTERS = {64: 110, 128: 240, 384: 640, 768: 1000}

_BLOCKS: dict[str, tuple[tuple[Callable[[blocks.Column], bool], int], ...]] = {
    "column": (
        (blocks.paragraph, 10),
        (blocks.heading, 4),
        (blocks.bullets, 3),
        (blocks.numbered, 2),
        (blocks.fields, 2),
    ),
    "columns": ((blocks.paragraph, 10), (blocks.heading, 3), (blocks.bullets, 2)),
    "table": ((blocks.table, 6), (blocks.paragraph, 2), (blocks.heading, 2), (blocks.fields, 1)),
}

NAMES = tuple(_BLOCKS)


class PrintedPage(NamedTuple):
    """grey: [height,width] uint8. text, places, drawn, boxes: see layouts_ink.Page."""

    grey: np.ndarray
    text: str
    places: list[Place]
    drawn: list[tuple[str, int]]
    boxes: list[Box | None]


def most_characters(visual_tokens: int) -> int:
    """The longest text of a page of this size, its line breaks and its end counted."""
    if visual_tokens in _MOST_CHARACTERS:
        return _MOST_CHARACTERS[visual_tokens]
    return max(110, min(1000, round(visual_tokens * 1.6)))


def some_size(source: Random) -> int:
    """Pixels of type; 21 most often."""
    return round(source.triangular(*FONT_SIZES, 21))


def some_fill(source: Random) -> float:
    """How full a page is: wholly, three times in ten, or from 0.3 to 1."""
    return source.uniform(0.3, 1) if source.random() < 0.7 else 1.0


def compose(
    source: Random,
    columns: int,
    rows: int,
    layout: str,
    families: Sequence[Family] = BUNDLED,
    most: int | None = None,
    size: int | None = None,
    fill: float | None = None,
) -> PrintedPage:
    """A page of columns x rows visual tokens of 28 pixels. most: characters, `most_characters` by default. size: of
    the type in pixels, `some_size` by default. fill: how full the page is of what `most` and the paper allow, 0 to
    1, as `some_fill` has it by default.
    """
    most = most or most_characters(columns * rows)
    most = round(most * (some_fill(source) if fill is None else fill))
    ink = Ink(columns, rows, most)
    width, height = columns * 28, rows * 28
    family = source.choice(families)
    size = size or some_size(source)
    margin = source.randint(6, 20) if source.random() < 0.6 else source.randint(6, max(7, width // 8))
    top = source.randint(2, 18) if source.random() < 0.6 else source.randint(2, max(3, height // 6))
    left, right = margin, width - max(6, margin - source.randint(0, 12))
    if layout == "columns":
        _two_columns(source, ink, family, size, left, right, top)
    else:
        if source.random() < 0.25:
            right = left + round((right - left) * source.uniform(0.6, 1))
        size = min(size, max(14, (right - left) // 9))
        column = blocks.Column(source, ink, family, size, 0, left, right, top, height - 2)
        column.pitch = _pitch(source, column)
        _fill(column, layout)
    page = ink.page()
    return PrintedPage(print_page(source, page.ink), page.text, page.places, page.drawn, page.boxes)


def _two_columns(source: Random, ink: Ink, family: Family, size: int, left: int, right: int, top: int) -> None:
    gutter = source.randint(14, 40)
    middle = left + round((right - left) * (0.5 if source.random() < 0.7 else source.uniform(0.42, 0.58)))
    edges = ((left, middle - gutter // 2), (middle + gutter // 2, right))
    size = min(size, max(14, min(b - a for a, b in edges) // 7))
    height = ink.pixels.shape[0]
    column = blocks.Column(source, ink, family, size, 0, left, right, top, height - 2)
    pitch = column.pitch = _pitch(source, column)
    if source.random() < 0.25:
        blocks.heading(column)
        column.top += source.uniform(0, pitch)
    start = column.top
    # Half of what may be written goes into the first column, so that there is a second one.
    body = sheet(family.regular, size)
    per_line = max(4.0, (edges[0][1] - edges[0][0]) / body.width("nationale") * 9)
    bottom = round(min(height - 2, start + body.height + ink.room / 2 / per_line * pitch))
    for number, (a, b) in enumerate(edges):
        end = bottom if number == 0 else min(height - 2, round(bottom + source.uniform(-0.5, 0.2) * (bottom - start)))
        shift = source.uniform(-0.4, 0.4) * pitch if source.random() < 0.2 else 0
        _fill(blocks.Column(source, ink, family, size, pitch, a, b, max(2, start + shift), max(end, 30)), "columns")


def _pitch(source: Random, column: blocks.Column) -> float:
    """Pixels from line to line: usual for print, or loose in one page of four."""
    factor = source.uniform(1.2, 1.6) if source.random() < 0.75 else source.uniform(1.6, 3.2)
    return max(column.size * factor, column.body.height * 0.9)


def _fill(column: blocks.Column, layout: str) -> None:
    """Blocks one below the other until the column or the page is full."""
    kinds, weights = zip(*_BLOCKS[layout], strict=True)
    last = None
    while column.room_for(column.body) and column.ink.room > 1:
        kind = column.source.choices(kinds, weights)[0]
        if kind is last and kind in (blocks.heading, blocks.table):
            continue
        last = kind
        if not kind(column):
            break
        if column.source.random() < 0.5:
            column.top += column.source.uniform(0.1, 1) * column.pitch
    if not column.ink.lines:
        blocks.paragraph(column)  # a table may not fit a small page; a line or two always does


def _draw(layout: str, source: Random, columns: int, rows: int) -> Drawn:
    page = compose(source, columns, rows, layout)
    return Drawn(Image.fromarray(page.grey).convert("RGB"), page.text, page.boxes)


DRAW: dict[str, Callable[[Random, int, int], Drawn]] = {name: partial(_draw, name) for name in NAMES}
"""For the registry of pages.py."""
