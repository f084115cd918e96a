"""The colours of a drawn trace, and a strip below the picture that tells what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

HOT = (255, 130, 60)  # pale enough for dark letters on it
BOX = (0, 90, 200)
DOUBT = (200, 0, 120)
_PEN = 2  # pixels
_DASH = 5

HEAT_ITEM = "heat", "looked at"
WRITTEN_ITEM = "heat", "looked at; the text is what it just wrote"
WORD_ITEM = "box", "word"
DOUBT_ITEM = "dashed", "doubtful word: it looked elsewhere, too"
_LINE, _SAMPLE, _MARGIN = 20, 34, 6  # pixels
_TEXT = (20, 20, 20)


def with_legend(picture: Image.Image, items: Sequence[tuple[str, str]]) -> Image.Image:
    """picture with a strip below it, as many lines high as the items (*_ITEM) take at its width."""
    font = ImageFont.load_default(13)
    places, x, line = [], _MARGIN, 0
    for _, text in items:
        width = _SAMPLE + _MARGIN + round(font.getlength(text)) + 2 * _MARGIN
        if x > _MARGIN and x + width > picture.width:
            x, line = _MARGIN, line + 1
        places.append((x, picture.height + _MARGIN + line * _LINE))
        x += width
    whole = Image.new("RGB", (picture.width, picture.height + (line + 1) * _LINE + 2 * _MARGIN), "white")
    whole.paste(picture, (0, 0))
    pen = ImageDraw.Draw(whole)
    for (kind, text), (left, top) in zip(items, places, strict=True):
        sample = (left, top + 3, left + _SAMPLE, top + _LINE - 5)
        if kind == "heat":
            for step in range(_SAMPLE):
                shade = tuple(round(255 + (part - 255) * step / _SAMPLE) for part in HOT)
                pen.line((left + step, sample[1], left + step, sample[3]), fill=shade)
        else:
            outline_box(pen, sample, DOUBT if kind == "dashed" else BOX, dashed=kind == "dashed")
        pen.text((left + _SAMPLE + _MARGIN, top), text, fill=_TEXT, font=font)
    return whole


def outline_box(pen: ImageDraw.ImageDraw, box, colour: tuple[int, int, int], dashed: bool) -> None:
    """The outline of box (left, top, right, bottom)."""
    if not dashed:
        pen.rectangle(box, outline=colour, width=_PEN)
        return
    left, top, right, bottom = map(round, box)
    for x in range(left, right, 2 * _DASH):
        for y in (top, bottom - 1):
            pen.line((x, y, min(x + _DASH, right), y), fill=colour, width=_PEN)
    for y in range(top, bottom, 2 * _DASH):
        for x in (left, right - 1):
            pen.line((x, y, x, min(y + _DASH, bottom)), fill=colour, width=_PEN)
