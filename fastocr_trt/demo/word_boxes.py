"""Where the words of a generated page stand, from where its characters do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image


class Box(NamedTuple):
    """Pixels from the page's upper left corner; right and bottom lie just outside."""

    left: float
    top: float
    right: float
    bottom: float


class Drawn(NamedTuple):
    """What a layout draws. image: mode RGB. places: of each character of the text its box, None where nothing is drawn
    for it (white space, signs of Markdown)."""

    image: Image.Image
    text: str
    places: list[Box | None]


class WordBox(NamedTuple):
    """text[start:end] of the page's text, a word between white space. box: from its first letter's origin to its last
    letter's advance, as high as its face's ascent and descent. line: the box of all words of its printed line."""

    text: str
    start: int
    end: int
    box: Box
    line: Box


def union(boxes: Sequence[Box]) -> Box:
    """The smallest box around `boxes`, of which there is at least one."""
    left, top, right, bottom = zip(*boxes, strict=True)
    return Box(min(left), min(top), max(right), max(bottom))


def word_boxes(text: str, places: Sequence[Box | None]) -> list[WordBox]:
    """The words of `text` that are printed, in its order.

    places: see `Drawn`. Words of which nothing is drawn are left out.
    """
    words: list[WordBox] = []
    start = 0
    for line in text.split("\n"):
        drawn = [place for place in places[start : start + len(line)] if place is not None]
        for found in re.finditer(r"\S+", line):
            first, end = start + found.start(), start + found.end()
            if boxes := [place for place in places[first:end] if place is not None]:
                words.append(WordBox(found.group(), first, end, union(boxes), union(drawn)))
        start += len(line) + 1
    return words
