"""Where a line of text stands on a page, to the pixel: visual tokens tell its row of them, ink the rest."""

from __future__ import annotations

import numpy as np

_AROUND = 0.75  # cells above and below the row of visual tokens that are looked at
_FAINT = 16  # of 255 grey levels; less than this is no ink
_BLANK = 0.15  # a row of pixels with less than this share of the fullest one's ink is blank
_GAP = 2  # pixels; narrower blanks lie within a line, such as that below the dot of an i


def line_band(grey: np.ndarray, row: int, left: float, right: float, cell: int) -> tuple[float, float] | None:
    """Top and bottom, in visual tokens, of the text that stands in `row` between `left` and `right`.

    grey [height,width]: the page, 0 to 255. left, right: in visual tokens of `cell` pixels. What varies along a row of
    pixels is ink, so that rules and bands of colour are none. The band is one visual token high and lies with its
    middle on the ink's; it is the ink's own where type is larger. None where there is no ink, or nothing but ink.
    """
    top, bottom = max(0, round((row - _AROUND) * cell)), min(grey.shape[0], round((row + 1 + _AROUND) * cell))
    part = grey[top:bottom, max(0, int(left * cell)) : int(np.ceil(right * cell))].astype(np.float32)
    if not part.size:
        return None
    differs = np.abs(part - np.median(part, axis=1, keepdims=True))
    ink = np.where(differs > max(differs.max() / 3, _FAINT), differs, 0).sum(1)
    inked = np.flatnonzero(ink > _BLANK * ink.max())
    if not len(inked):
        return None
    lines = np.split(inked, np.flatnonzero(np.diff(inked) > _GAP + 1) + 1)
    start, end = row * cell - top, (row + 1) * cell - top
    inside = [ink[line[(line >= start) & (line < end)]].sum() for line in lines]
    line = lines[int(np.argmax(inside))]
    if not max(inside) or (line[0] == 0 and line[-1] == len(ink) - 1):
        return None
    if len(line) > cell:
        return (top + line[0]) / cell, (top + line[-1] + 1) / cell
    middle = (top + line @ ink[line] / ink[line].sum() + 0.5) / cell
    lowest = grey.shape[0] / cell - 1
    first = float(np.clip(middle - 0.5, 0, lowest))
    return first, first + 1
