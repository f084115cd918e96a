"""Judge a policy by what it reads: character accuracy against dense output, and against the pages' texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import metrics
from ..calibration import Choice
from ..counts import plural
from ..errors import FastOCRError
from ..metrics import Interval
from .masked_reading import Reading

FEWEST_PAGES = 10
"""Below this many pages the value itself is held against the target, and no interval is told: a bootstrap over so few
says little."""


@dataclass(frozen=True)
class Verification:
    """What decoding with a policy gave.

    against_dense: character accuracy with dense output as the truth. retention: accuracy against the texts over
    dense's own, on the `texts` pages that have one; None where none has. reads: mean visual reads as they were
    (0 to 1). equal_pages: pages with dense output to the letter.
    """

    choice: Choice
    against_dense: Interval
    retention: Interval | None
    reads: float
    equal_pages: int
    pages: int
    texts: int

    @property
    def judged(self) -> Interval:
        """What the target is held against: retention where there are texts."""
        return self.against_dense if self.retention is None else self.retention

    @property
    def judged_pages(self) -> int:
        return self.pages if self.retention is None else self.texts

    @property
    def by_bound(self) -> bool:
        """Whether the interval's lower bound is held against the target; the value itself where pages are few."""
        return self.judged_pages >= FEWEST_PAGES

    def keeps(self, target: float) -> bool:
        """Whether what is judged by reaches `target`."""
        return (self.judged.low if self.by_bound else self.judged.value) >= target

    def tell_judged(self, to: str = " to ") -> str:
        """For people, as the two below; `to` lies between the bounds."""
        return _tell(self.judged, self.judged_pages, to)

    def tell_against_dense(self, to: str = " to ") -> str:
        return _tell(self.against_dense, self.pages, to)

    def tell_retention(self, to: str = " to ") -> str:
        return "no texts" if self.retention is None else _tell(self.retention, self.texts, to)

    def to_dict(self) -> dict:
        return {
            "policy": self.choice.policy.to_dict(),
            "recovered_mass": self.choice.recovered,
            "mean_visual_reads": self.reads,
            "accuracy_against_dense": _record(self.against_dense, self.pages),
            "retention": self.retention and _record(self.retention, self.texts),
            "equal_pages": self.equal_pages,
        }


def dense_accuracy(dense: Sequence[Reading], texts: Sequence[str | None]) -> float | None:
    """Character accuracy of dense reading on the pages that have a text (0 to 1), None where none has.

    FastOCRError where it is 0: then retention is no number.
    """
    pairs = [(reading.text, text) for reading, text in zip(dense, texts, strict=True) if text is not None]
    if not pairs:
        return None
    accuracy = metrics.character_accuracy(*zip(*pairs, strict=True))
    if accuracy == 0:
        raise FastOCRError(
            f"dense reading has a character accuracy of 0 on the {plural(len(pairs), 'page')} with a text: the "
            "texts belong to other pages, or the model cannot read these; leave the texts out to compare with dense "
            "output alone"
        )
    return accuracy


def verify(
    choice: Choice, readings: Sequence[Reading], dense: Sequence[Reading], texts: Sequence[str | None]
) -> Verification:
    """Compare page by page; all three in the same order."""
    written, baseline = [r.text for r in readings], [r.text for r in dense]
    known = [i for i, text in enumerate(texts) if text is not None]
    retention = None
    if known:
        ours, theirs, truths = ([source[i] for i in known] for source in (written, baseline, texts))
        retention = metrics.retention_interval(ours, theirs, truths)
    return Verification(
        choice=choice,
        against_dense=metrics.accuracy_interval(written, baseline),
        retention=retention,
        reads=float(np.mean([r.mean_visual_reads for r in readings])),
        equal_pages=sum(a == b for a, b in zip(written, baseline, strict=True)),
        pages=len(written),
        texts=len(known),
    )


def pick(verified: Sequence[Verification], target: float) -> tuple[Verification, bool]:
    """The cheapest that keeps the target, and True; where none does, the most accurate (then cheapest), and False."""
    cheapest_first = sorted(verified, key=lambda v: v.choice.reads)
    for verification in cheapest_first:
        if verification.keeps(target):
            return verification, True
    return max(cheapest_first, key=lambda v: v.judged.value), False


def _tell(interval: Interval, pages: int, to: str) -> str:
    """The value, with its bounds where there are pages enough."""
    if pages < FEWEST_PAGES:
        return f"{interval.value:.1%}"
    return f"{interval.value:.1%} ({interval.low:.1%}{to}{interval.high:.1%})"


def _record(interval: Interval, pages: int) -> dict[str, float | None]:
    """For JSON: bounds over few pages are null."""
    return interval._asdict() if pages >= FEWEST_PAGES else {"value": interval.value, "low": None, "high": None}
