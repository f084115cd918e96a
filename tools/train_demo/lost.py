"""Where a reader is lost on a page: how often it is right about the next character, the text before it given, within
lines, at their starts and ends, and at the page's end; and how much of the guided layers' attention is on its place.

Within lines a wrong character costs itself; at a line's start it costs lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from transformers import Qwen2_5_VLForConditionalGeneration as Reader

from fastocr_trt.demo.layouts import compose
from fastocr_trt.demo.pages import SEEDS, SIZES

from . import twin
from .characters import END, NEWLINE
from .data import IGNORED, Batch, collate
from .losses import on_places

WHERE = ("within lines", "start of a line", "end of a line", "end of the page")
_WITHIN, _START, _END, _LAST = range(4)


def where(batch: Batch) -> torch.Tensor:
    """[B,T] int64: the number in WHERE of each label, -1 where nothing is asked."""
    found = torch.full_like(batch.labels, _WITHIN)
    found[batch.input_ids == NEWLINE] = _START
    found[batch.labels == NEWLINE] = _END
    found[batch.labels == END] = _LAST
    return found.masked_fill(batch.labels == IGNORED, -1)


def lost(
    reader: Path, pages: int, layouts: Sequence[str], visual_tokens: int, guided_layers: Sequence[int], threads: int
) -> dict[tuple[str, str], tuple[int, int]]:
    """Print a table; returns (right, asked) by (layout, name in WHERE)."""
    torch.set_num_threads(threads)
    model = Reader.from_pretrained(reader, dtype=torch.float32).eval()
    columns, rows = SIZES[visual_tokens]
    print(f"| layout | next character | asked | right | attention on its place, layers {list(guided_layers)} |")
    print("|---|---|---|---|---|")
    counts = {}
    for layout in layouts:
        right, asked = torch.zeros(len(WHERE)), torch.zeros(len(WHERE))
        shares = torch.zeros(len(WHERE), len(guided_layers))
        for seed in SEEDS["benchmarks"][:pages]:
            source = Random(f"lost {layout} {visual_tokens} {seed}")
            batch = collate([compose(source, columns, rows, layout)], columns, rows, source)
            with torch.no_grad():  # inference tensors would stay in the caches of `twin`
                visual = twin.see(model, batch.pages)
                reading = twin.read(model, visual, batch.input_ids, columns, rows, tuple(guided_layers))
            correct = reading.logits.argmax(-1) == batch.labels
            on_place = torch.stack([on_places(each, batch).exp().mean(1) for each in reading.attention], -1)
            for number, asked_here in enumerate(where(batch) == n for n in range(len(WHERE))):
                asked[number] += asked_here.sum()
                right[number] += correct[asked_here].sum()
                shares[number] += on_place[asked_here].sum(0)
        for number, name in enumerate(WHERE):
            counts[layout, name] = int(right[number]), int(asked[number])
            each = " ".join(f"{share:.2f}" for share in (shares[number] / asked[number].clamp(min=1)).tolist())
            share = right[number] / asked[number].clamp(min=1)
            print(f"| {layout} | {name} | {asked[number]:.0f} | {share:.1%} | {each} |", flush=True)
    return counts
