"""Layouts "lines" and "small", for measuring only: short lines with much bare paper, and full pages of small type.

They are drawn from the blocks and faces of `layouts`, but no training page is made by them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from PIL import Image

from . import layouts_blocks as blocks
from . import layouts_text as text
from .layouts import most_characters
from .layouts_fonts import BUNDLED
from .layouts_ink import Ink, Run
from .layouts_noise import print_page
from .word_boxes import Drawn


def short_lines(source: Random, columns: int, rows: int) -> Drawn:
    """One to three words a line, of 18 to 24 pixels, each line with an indent of its own in one page of three."""
    column = _column(source, columns, rows, source.randint(18, 24), source.uniform(1.3, 2.2))
    ragged = source.random() < 1 / 3
    stream = text.prose(source)
    while True:
        words = [next(stream) for _ in range(source.randint(1, 3))]
        indent = source.uniform(0, 0.4) * (column.right - column.left) if ragged else 0
        line = blocks.wrap(words, column.body, column.right - column.left - indent)[0]
        if not column.write([Run(line, column.left + indent)], column.body):
            return _print(source, column.ink)


def small_type(source: Random, columns: int, rows: int) -> Drawn:
    """Paragraphs of 14 to 16 pixels, closely set, as many characters as a page of the size has at most."""
    column = _column(source, columns, rows, source.randint(14, 16), source.uniform(1.15, 1.3))
    while blocks.paragraph(column):
        pass
    return _print(source, column.ink)


def _column(source: Random, columns: int, rows: int, size: int, pitch: float) -> blocks.Column:
    """The page as one column. pitch: from line to line, in sizes of the type."""
    ink = Ink(columns, rows, most_characters(columns * rows))
    margin, top = source.randint(6, 20), source.randint(2, 18)
    right, bottom = columns * 28 - margin, rows * 28 - 2
    return blocks.Column(source, ink, source.choice(BUNDLED), size, size * pitch, margin, right, top, bottom)


def _print(source: Random, ink: Ink) -> Drawn:
    page = ink.page()
    return Drawn(Image.fromarray(print_page(source, page.ink)).convert("RGB"), page.text, page.boxes)


DRAW: dict[str, Callable[[Random, int, int], Drawn]] = {"lines": short_lines, "small": small_type}
"""For the registry of pages.py."""
