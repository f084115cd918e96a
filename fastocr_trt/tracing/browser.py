"""A trace as one HTML file that needs no network: the page, the text beside it, and each the other's index."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..counts import plural
from ..runtime.provenance import Gaze, read_words
from ..runtime.trace import JPEG_QUALITY, Trace
from .heat import is_dark, resized_box

MOST_CELLS = 12
"""Visual tokens that are drawn of one token's gaze, the heaviest."""


def page_of(traces: Sequence[Trace]) -> str:
    """The HTML of one or more traces, one below the other."""
    template = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    data = json.dumps([_facts(trace) for trace in traces], separators=(",", ":"))
    title = ", ".join(dict.fromkeys(_name(trace) for trace in traces))
    # `<` in a script would end it; within JSON strings it can be escaped.
    data = data.replace("<", "\\u003c")
    parts = {"title": html.escape(title[:200]), "data": data}
    # In one go: what is put in may itself look like a place to fill.
    return re.sub(r"\{\{(title|data)\}\}", lambda place: parts[place.group(1)], template)


def _name(trace: Trace) -> str:
    """The file's name alone: where it lay is nobody's business that the page is shown to."""
    where = Path(trace.source).name if trace.source else "a page"
    return where if trace.page is None else f"{where}, page {trace.page}"


def shown(share: float) -> str:
    """Two significant digits, three near 1; what is less than 1 is never shown as 1."""
    if share >= 0.995:
        return "1" if share >= 1 else f"{min(share, 0.999):.3f}"
    return f"{share:.2g}"


def _facts(trace: Trace) -> dict[str, Any]:
    gaze = Gaze(trace)
    tokens = []
    for number in range(len(trace.token_ids)):
        mass = gaze.mass(np.array([number]))[0]
        cells = np.argsort(-mass, kind="stable")[:MOST_CELLS]
        cells = cells[mass[cells] > 0.01]
        tokens.append([int(trace.spans[number, 1]), [[int(c), round(float(mass[c]), 2)] for c in cells]])
    words = []
    for word in read_words(trace):
        box = None if word.box is None else [round(edge, 1) for edge in resized_box(trace, word)]
        page_box = None if word.box is None else [round(edge) for edge in word.box]
        words.append(
            {
                "start": word.start,
                "end": word.end,
                "image": word.image,
                "box": box,
                "page_box": page_box,
                "confidence": shown(word.confidence),
                "probability": shown(word.probability),
                "doubtful": word.doubtful,
            }
        )
    images = []
    for image, picture in zip(trace.images, trace.pictures, strict=True):
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=JPEG_QUALITY)
        url = "data:image/jpeg;base64," + base64.b64encode(stream.getvalue()).decode("ascii")
        images.append(
            {
                "url": url,
                "dark": is_dark(picture),
                "width": image.resized[0],
                "height": image.resized[1],
                "columns": image.columns,
                "cell": image.cell,
                "first": image.first_row,
                "count": image.visual_tokens,
            }
        )
    return {
        "name": _name(trace),
        "about": f"{plural(len(trace.token_ids), 'token')}, {plural(trace.visual_tokens, 'visual token')}, "
        f"{trace.mode}, focal layers {', '.join(map(str, trace.layers))}",
        "text": trace.text,
        "tokens": tokens,
        "words": words,
        "images": images,
    }
