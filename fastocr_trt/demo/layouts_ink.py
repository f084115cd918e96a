"""A page being written: its pixels, its text, and where on the page each character of the text is found."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .layouts_fonts import ROOM, Sheet
from .word_boxes import Box

TOKEN_PIXELS = 28


class Run(NamedTuple):
    """A piece of a line. drawn: its characters are put on the page at x; otherwise it is a sign of the Markdown that
    stands for something at x (a bullet, a rule, the larger letters of a heading) and belongs to the next drawn run."""

    text: str
    x: float
    drawn: bool = True


class Place(NamedTuple):
    """Visual tokens (row * columns + column) at which one character of the text is read; both alike but at a line's
    end, which is read from this line's start and from the next line's."""

    here: int
    there: int


class Page(NamedTuple):
    """What a layout makes, before noise.

    ink: [height,width] uint8, 0 is bare paper. text: in reading order. places: one for each character of the text and
    one for its end. drawn: (character, visual token) of all that is printed, in reading order. boxes: of each
    character of the text its place in pixels, None where nothing is drawn for it.
    """

    ink: np.ndarray
    text: str
    places: list[Place]
    drawn: list[tuple[str, int]]
    boxes: list[Box | None]


class Ink:
    """Collects lines. `room` is how many characters may still be written, line breaks included."""

    def __init__(self, columns: int, rows: int, room: int):
        self.columns, self.rows, self.room = columns, rows, room
        self.pixels = np.zeros((rows * TOKEN_PIXELS, columns * TOKEN_PIXELS), np.uint8)
        self._text: list[str] = []
        self._places: list[Place] = []
        self._drawn: list[tuple[str, int]] = []
        self._boxes: list[Box | None] = []
        self._start: int | None = None
        self.lines = 0

    def token(self, x: float, y: float) -> int:
        """The visual token that holds this pixel, the nearest one for a pixel beside the page."""
        column = min(max(int(x) // TOKEN_PIXELS, 0), self.columns - 1)
        return min(max(int(y) // TOKEN_PIXELS, 0), self.rows - 1) * self.columns + column

    def line(self, runs: list[Run], top: int, sheet: Sheet) -> bool:
        """Write one line whose upper edge is at pixel row `top`. False, with nothing written, if it does not fit."""
        length = sum(len(run.text) for run in runs) + 1
        if length > self.room or top < 0 or top + sheet.height > self.pixels.shape[0]:
            return False
        self.room -= length
        middle = top + sheet.middle
        start = self.token(min(run.x for run in runs) + sheet.size * 0.3, middle)
        if self._start is not None:
            self._text.append("\n")
            self._boxes.append(None)
            self._places.append(Place(self._start, start))
        self._start = start
        self.lines += 1
        for run in runs:
            if run.drawn:
                self._draw(run, top, sheet)
            else:
                place = self.token(run.x + sheet.size * 0.3, middle)
                self._text.extend(run.text)
                self._boxes.extend([None] * len(run.text))
                self._places.extend([Place(place, place)] * len(run.text))
        return True

    def _draw(self, run: Run, top: int, sheet: Sheet) -> None:
        x = run.x
        for character in run.text:
            advance = sheet.advance(character)
            place = self.token(x + advance / 2, top + sheet.middle)
            self._text.append(character)
            self._places.append(Place(place, place))
            self._boxes.append(None if character == " " else Box(x, top, x + advance, top + sheet.height))
            if character != " ":
                self._drawn.append((character, place))
                self.stamp(sheet.glyph(character), round(x) - ROOM, top)
            x += advance

    def stamp(self, glyph: np.ndarray, x: int, top: int) -> None:
        """Put a glyph down with its left edge at x; where it overlaps, the darker pixel stays."""
        cut, end = max(0, -x), min(glyph.shape[1], self.pixels.shape[1] - x)
        if end > cut:
            region = self.pixels[top : top + glyph.shape[0], x + cut : x + end]
            np.maximum(region, glyph[:, cut:end], out=region)

    def fill(self, left: int, top: int, right: int, bottom: int) -> None:
        """A solid bar: rules of a table, bullets."""
        self.pixels[max(top, 0) : max(bottom, 0), max(left, 0) : max(right, 0)] = 255

    def page(self) -> Page:
        """All that was written; at least one line must have been."""
        if self._start is None:
            raise ValueError("no line was written")
        end = Place(self._start, self._start)
        return Page(self.pixels, "".join(self._text), [*self._places, end], self._drawn, self._boxes)
