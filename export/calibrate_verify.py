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
"""Below this many pages the value itself is held against the target: a bootstrap over so few says little."""


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

    def keeps(self, target: float) -> bool:
        """Whether the lower bound of the interval, or the value where pages are few, reaches `target`."""
        return (self.judged.low if self.judged_pages >= FEWEST_PAGES else self.judged.value) >= target

    def to_dict(self) -> dict:
        return {
            "policy": self.choice.policy.to_dict(),
            "recovered_mass": self.choice.recovered,
            "mean_visual_reads": self.reads,
            "accuracy_against_dense": self.against_dense._asdict(),
            "retention": self.retention and self.retention._asdict(),
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
