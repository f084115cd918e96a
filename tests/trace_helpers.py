"""Made-up traces: a page of bare squares, and a gaze that goes where it is told."""

from __future__ import annotations

import numpy as np
from PIL import Image

from fastocr_trt.runtime.trace import Trace, TracedImage

CELL = 28


def image(columns: int = 8, rows: int = 8, scale: float = 1.0, first_row: int = 0) -> TracedImage:
    """One whose size as given is `scale` times that which the model saw."""
    size = columns * CELL, rows * CELL
    return TracedImage((round(size[0] * scale), round(size[1] * scale)), size, columns, rows, CELL, first_row)


def trace_of(text: str, gazes: list, images: tuple[TracedImage, ...] | None = None, spans=None) -> Trace:
    """gazes: for each token its heads, each a dict of visual token -> mass; a token a character unless spans say so."""
    images = images or (image(),)
    tokens, heads = len(gazes), len(gazes[0]) if gazes else 1
    places = max([len(head) for token in gazes for head in token], default=1)
    rows = np.full((tokens, heads, 1, places), -1, np.int32)
    mass = np.zeros(rows.shape, np.float16)
    for t, token in enumerate(gazes):
        for h, head in enumerate(token):
            order = sorted(head.items(), key=lambda item: -item[1])
            rows[t, h, 0, : len(order)] = [row for row, _ in order]
            mass[t, h, 0, : len(order)] = [value for _, value in order]
    if spans is None:
        spans = [(i, i + 1) for i in range(tokens)]
    return Trace(
        text=text,
        mode="fast",
        layers=tuple(range(heads)),
        images=images,
        token_ids=np.arange(tokens, dtype=np.int32),
        spans=np.array(spans, np.int32).reshape(-1, 2),
        log_probabilities=np.full(tokens, np.log(0.5), np.float16),
        rows=rows,
        mass=mass,
        page_mass=mass.sum(-1),
        pictures=tuple(Image.new("RGB", each.resized, "white") for each in images),
    )


def at(column: float, row: int, columns: int = 8, first_row: int = 0, mass: float = 1.0) -> dict[int, float]:
    """A head that looks at `column` of `row`: between two visual tokens it shares its mass between both."""
    left = int(column)
    part = column - left
    start = first_row + row * columns + left
    return {start: mass * (1 - part)} if part == 0 else {start: mass * (1 - part), start + 1: mass * part}
