"""How well a page was read: error rates over characters, retention against another reading, and how sure we are.

Rates are pooled over pages (all edits over all characters), so that a long page counts for its length.
Needs rapidfuzz, which the extra `test` brings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .counts import plural
from .errors import FastOCRError, MissingDependencyError


class Interval(NamedTuple):
    """A value over all pages and the bounds of its bootstrap interval."""

    value: float
    low: float
    high: float


def edit_distance(reading: str, truth: str) -> int:
    """Levenshtein distance in characters: insertions, deletions and substitutions, each one."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError:
        raise MissingDependencyError(
            "character error rates need rapidfuzz, which is not installed; install it with "
            "`pip install fastocr-trt[test]` or `pip install rapidfuzz`"
        ) from None
    return Levenshtein.distance(reading, truth)


def edits(readings: Sequence[str], truths: Sequence[str]) -> NDArray[np.float64]:
    """[pages, 2]: edit distance and length of the truth, per page. FastOCRError where the numbers of texts differ."""
    if len(readings) != len(truths):
        raise FastOCRError(
            f"{plural(len(readings), 'reading')} cannot be compared with {plural(len(truths), 'text')}; pair them up"
        )
    return np.array([[edit_distance(r, t), len(t)] for r, t in zip(readings, truths, strict=True)], float).reshape(
        -1, 2
    )


def character_error_rate(readings: Sequence[str], truths: Sequence[str]) -> float:
    """Edits over characters of the truths; may pass 1. Two empty texts agree (0), text where none is is 1 per edit."""
    return _rate(edits(readings, truths))


def normalised_edit_distance(readings: Sequence[str], truths: Sequence[str]) -> float:
    """Mean over pages of edits / length of the longer text: 0 is equal, 1 nothing in common."""
    pairs = edits(readings, truths)
    if not len(pairs):
        return 0.0
    longer = np.maximum([len(r) for r in readings], pairs[:, 1])
    return float(np.mean(pairs[:, 0] / np.maximum(longer, 1)))


def character_accuracy(readings: Sequence[str], truths: Sequence[str]) -> float:
    """1 - character error rate, at least 0."""
    return max(0.0, 1.0 - character_error_rate(readings, truths))


def retention(readings: Sequence[str], baseline: Sequence[str], truths: Sequence[str]) -> float:
    """Character accuracy of `readings` over that of `baseline` (the dense readings) on the same pages."""
    return _retention(np.hstack([edits(readings, truths), edits(baseline, truths)]))


def retention_interval(
    readings: Sequence[str], baseline: Sequence[str], truths: Sequence[str], *, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Retention with a paired bootstrap interval: a page is drawn with both of its readings."""
    return bootstrap(
        np.hstack([edits(readings, truths), edits(baseline, truths)]), _retention, seed=seed, confidence=confidence
    )


def accuracy_interval(
    readings: Sequence[str], truths: Sequence[str], *, seed: int = 0, confidence: float = 0.95
) -> Interval:
    """Character accuracy with a bootstrap interval over pages."""
    pairs = edits(readings, truths)
    return bootstrap(pairs, lambda drawn: max(0.0, 1.0 - _rate(drawn)), seed=seed, confidence=confidence)


def bootstrap(
    pages: NDArray[np.float64],
    statistic: Callable[[NDArray[np.float64]], float],
    *,
    seed: int = 0,
    confidence: float = 0.95,
    draws: int = 2_000,
) -> Interval:
    """Percentile bootstrap: `pages` [pages, columns] drawn with replacement, `statistic` of each draw.

    The same seed gives the same interval. FastOCRError where there is no page.
    """
    if not len(pages):
        raise FastOCRError("an interval over 0 pages cannot be told; give at least one page")
    source = np.random.default_rng(seed)
    values = [statistic(pages[source.integers(0, len(pages), len(pages))]) for _ in range(draws)]
    tail = (1 - confidence) / 2
    # Values that were drawn, not points between them: a retention may be infinite.
    low, high = np.quantile(values, [tail, 1 - tail], method="inverted_cdf")
    return Interval(statistic(pages), float(low), float(high))


def _rate(pairs: NDArray[np.float64]) -> float:
    edited, length = pairs[:, 0].sum(), pairs[:, 1].sum()
    return float(edited / max(length, 1.0))


def _retention(pairs: NDArray[np.float64]) -> float:
    """`pairs` [pages, 4]: edits and length of one reading, then of the baseline. Nothing kept of nothing is 1."""
    kept, whole = max(0.0, 1 - _rate(pairs[:, :2])), max(0.0, 1 - _rate(pairs[:, 2:]))
    if whole == 0:
        return 1.0 if kept == 0 else float("inf")
    return kept / whole
