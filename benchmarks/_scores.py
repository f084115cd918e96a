"""Rows of tables on readings: error rates, retention of dense reading, paired differences, and their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from rapidfuzz.distance import LCSseq

from fastocr_trt import metrics
from fastocr_trt.export.masked_reading import Reading
from fastocr_trt.metrics import Interval

READABLE = 0.5
"""Least character accuracy of dense reading at which pages count as read, and retention is told."""


@dataclass
class Read:
    """A way of reading: its name, its keep as text, and its readings by layout, in the pages' order."""

    name: str
    keep: str = ""
    by_layout: dict[str, list[Reading]] = field(default_factory=dict)

    def texts(self, layouts: Sequence[str]) -> list[str]:
        return [reading.text for layout in layouts for reading in self.by_layout[layout]]

    def reads(self, layouts: Sequence[str]) -> float:
        """Mean visual reads over pages, 0 to 1."""
        return float(np.mean([r.mean_visual_reads for layout in layouts for r in self.by_layout[layout]]))


def exact_lines(readings: Sequence[str], truths: Sequence[str]) -> float:
    """Share of the truths' lines that were read without a mistake, in their order."""
    found = sum(
        LCSseq.similarity(r.split("\n"), t.split("\n")) for r, t in zip(readings, truths, strict=True)
    )  # rapidfuzz takes any sequence of hashables
    return found / max(1, sum(t.count("\n") + 1 for t in truths))


def error_difference(readings: Sequence[str], others: Sequence[str], truths: Sequence[str]) -> Interval:
    """Character error rate of `readings` less that of `others`, with a paired bootstrap interval over pages."""
    pairs = np.hstack([metrics.edits(readings, truths), metrics.edits(others, truths)])
    return metrics.bootstrap(pairs, lambda p: float((p[:, 0].sum() - p[:, 2].sum()) / max(p[:, 1].sum(), 1)))


COLUMNS = (
    "reading",
    "keep",
    "visual reads",
    "CER",
    "normalised edit distance",
    "exact lines",
    "retention of dense",
    "CER less that of {other}, points",
    "CER against dense output",
)


def columns(other: str) -> list[str]:
    return [column.format(other=other) for column in COLUMNS]


def row(read: Read, dense: Read, other: Read, truths: dict[str, list[str]], layouts: Sequence[str]) -> list[str]:
    """The cells of COLUMNS, pooled over `layouts`. truths: by layout."""
    texts, texts_of_dense, right = read.texts(layouts), dense.texts(layouts), [t for n in layouts for t in truths[n]]
    difference = error_difference(texts, other.texts(layouts), right)
    return [
        read.name,
        read.keep,
        f"{read.reads(layouts):.1%}",
        f"{metrics.character_error_rate(texts, right):.1%}",
        f"{metrics.normalised_edit_distance(texts, right):.3f}",
        f"{exact_lines(texts, right):.1%}",
        retention(texts, texts_of_dense, right),
        "" if read is other else points(difference),
        f"{metrics.character_error_rate(texts, texts_of_dense):.1%}",
    ]


def retention(texts: Sequence[str], dense: Sequence[str], truths: Sequence[str]) -> str:
    """With its interval; n/a where dense reading is not READABLE: a share of next to nothing says nothing."""
    if metrics.character_accuracy(dense, truths) < READABLE:
        return "n/a"
    kept = metrics.retention_interval(texts, dense, truths)
    if not all(map(math.isfinite, kept)):
        return "n/a"
    return f"{kept.value:.1%} ({kept.low:.1%} to {kept.high:.1%})"


def points(interval: Interval) -> str:
    """A difference of rates in percentage points, with its interval."""
    value, low, high = (100 * x + 0.0 for x in interval)
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f})"


def by_layout(reads: Sequence[Read], dense: Read, truths: dict[str, list[str]], layouts: Sequence[str]) -> list[list]:
    """Rows of name, keep and, for each layout, the character error rate and the retention of dense."""
    rows = []
    for read in reads:
        cells = [read.name, read.keep]
        for layout in layouts:
            texts, right = read.texts([layout]), truths[layout]
            kept = retention(texts, dense.texts([layout]), right)
            cells.append(f"{metrics.character_error_rate(texts, right):.1%}; {kept}")
        rows.append(cells)
    return rows


def readable(dense: Read, truths: dict[str, list[str]]) -> list[str]:
    """Layouts that the dense model reads. All of them where it reads none."""
    found = [n for n in truths if metrics.character_accuracy(dense.texts([n]), truths[n]) >= READABLE]
    return found or list(truths)
