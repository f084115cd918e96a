"""Layout "mono": lines of DejaVu Sans Mono, 22 to 24 pixels, dark grey on white; what the demo reader learned from."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .word_boxes import Box, Drawn
from .words import random_line

FONT = Path(__file__).with_name("DejaVuSansMono.ttf")
FONT_SIZES = (22, 23, 24)

# (columns, rows) of visual tokens -> range of the line pitch in pixels, most characters on a page
_SIZES = {(8, 8): ((30, 48), 74), (16, 8): ((30, 56), 170), (24, 16): ((30, 64), 394), (24, 32): ((34, 84), 394)}
_LEFT, _RIGHT = 4, 4  # room around a glyph for what overhangs its advance


def draw(source: Random, columns: int, rows: int) -> Drawn:
    """A page of columns x rows visual tokens of 28 pixels."""
    width, height = columns * 28, rows * 28
    pitch_range, max_characters = _SIZES[columns, rows]
    size = source.choice(FONT_SIZES)
    advance, line_height = _metrics(size)
    left, top = source.randint(6, 20), source.randint(2, 18)
    pitch = source.randint(*pitch_range)
    most = max(1, (height - top - line_height) // pitch + 1)
    wanted = most if source.random() < 0.7 else source.randint(1, most)

    ink = np.zeros((height, width), np.uint8)
    lines: list[str] = []
    places: list[Box | None] = []
    characters = 0
    while len(lines) < wanted and top + line_height <= height:
        line = random_line(source, (width - left - 8) // advance)
        characters += len(line) + 1
        if characters > max_characters:
            break
        x = left + (source.randint(0, 10) if source.random() < 0.3 else 0)
        if x + len(line) * advance > width - 4:
            x = left
        _write(ink, line, x, top, size)
        lines.append(line)
        edges = [x + number * advance for number in range(len(line) + 1)]
        places += [
            None if character == " " else Box(left_edge, top, right_edge, top + line_height)
            for character, left_edge, right_edge in zip(line, edges, edges[1:], strict=False)
        ]
        places.append(None)  # the line break, which the last line has not
        top += pitch
        if source.random() < 0.12:
            top += source.randint(4, pitch)
    darkness = source.uniform(0.75, 1.0)
    grey = (255 - ink * darkness).astype(np.uint8)
    return Drawn(Image.fromarray(grey).convert("RGB"), "\n".join(lines), places[:-1])


def _write(ink: np.ndarray, line: str, x: int, top: int, size: int) -> None:
    """Put the line's glyphs on `ink` [height,width], each at a whole pixel, overlaps taking the darker."""
    advance, _ = _metrics(size)
    for number, character in enumerate(line):
        if character == " ":
            continue
        glyph = _glyph(character, size)
        start = x + number * advance - _LEFT
        cut, end = max(0, -start), min(glyph.shape[1], ink.shape[1] - start)
        region = ink[top : top + glyph.shape[0], start + cut : start + end]
        np.maximum(region, glyph[:, cut:end], out=region)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONT), size, layout_engine=ImageFont.Layout.BASIC)


@cache
def _metrics(size: int) -> tuple[int, int]:
    """(advance of every character, height of a line), in pixels."""
    ascent, descent = _font(size).getmetrics()
    return round(_font(size).getlength("x")), ascent + descent + 2


@cache
def _glyph(character: str, size: int) -> np.ndarray:
    """Coverage 0..255, [line height, advance + room on both sides]."""
    advance, height = _metrics(size)
    image = Image.new("L", (_LEFT + advance + _RIGHT, height), 0)
    ImageDraw.Draw(image).text((_LEFT, 0), character, fill=255, font=_font(size))
    return np.asarray(image)
