"""What a calibration found: the policy, how far it can be trusted, and policy.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..atomic import whole_file
from ..calibration import Choice, RecoveredMass, pareto
from ..counts import plural
from .calibrate_verify import FEWEST_PAGES, Verification
from .masked_reading import MaskedReader


@dataclass(frozen=True)
class Options:
    """keeps: sizes of fixations to try, as shares of the page; batch: pages read together; target: share of dense
    accuracy that the policy must keep; least_recovered, candidates: see `fastocr_trt.calibration.candidates`."""

    prompt: str
    keeps: tuple[float, ...] = (0.05,)
    max_new_tokens: int = 512
    batch: int = 8
    target: float = 0.99
    least_recovered: float = 0.9
    candidates: int = 4


@dataclass(frozen=True)
class Loaded:
    """A checkpoint ready to be calibrated. model: as the manifest describes it, with hashes of its files."""

    reader: MaskedReader
    model: dict[str, Any]
    prompt: str
    environment: dict[str, Any]


@dataclass(frozen=True)
class Calibration:
    """All that was found.

    pages: where they come from, how many were read, have a text, were left out, or were cut by dense reading.
    dense_accuracy: against the texts, None without; masses: RecoveredMass of each keep, selections per KV head;
    verified: by rising reads; chosen keeps the target or, where `kept` is False, comes closest; warnings: as they were
    given while it went on.
    """

    loaded: Loaded
    options: Options
    pages: dict[str, Any]
    dense_accuracy: float | None
    masses: dict[float, RecoveredMass]
    choices: list[Choice]
    verified: list[Verification]
    chosen: Verification
    kept: bool
    warnings: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """Few pages are no calibration, however well they were read."""
        if not self.kept:
            return "calibrated, below its target"
        return "calibrated" if self.chosen.by_bound else "calibrated on few pages"

    def tell(self) -> str:
        """The status and what it rests on, in a sentence without its stop."""
        chosen, cut, left_out = self.chosen, self.pages["cut"], self.pages["left_out"]
        what = "retention" if chosen.retention else "character accuracy against dense output"
        of = "" if self.dense_accuracy is None else f" of dense reading's {self.dense_accuracy:.1%} accuracy"
        by = "the interval's lower bound counts"
        few = f"fewer than {plural(FEWEST_PAGES, 'page')}, so that the value itself counts"
        parts = [
            f"{self.status}: {what} {chosen.tell_judged()}{of} on {plural(chosen.judged_pages, 'page')}, target "
            f"{self.options.target:.1%}",
            by if chosen.by_bound else few,
        ]
        if cut:
            parts.append(tell_cut(cut, self.pages["count"], self.options.max_new_tokens))
        if left_out:
            parts.append(f"{plural(left_out, 'page')} could not be read")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """policy.json: the policy, and under `calibration` the record that the manifest takes over."""
        first = next(iter(self.masses.values()))
        front = pareto(self.choices)
        return {
            "policy": self.chosen.choice.policy.to_dict(),
            "calibration": {
                "status": self.status,
                "target": self.options.target,
                "judged_by": "retention" if self.chosen.retention else "accuracy_against_dense",
                "judged_on": "lower bound" if self.chosen.by_bound else "value",
                "judged_pages": self.chosen.judged_pages,
                "model": self.loaded.model,
                "prompt": self.options.prompt,
                "max_new_tokens": self.options.max_new_tokens,
                "pages": self.pages,
                "dense_accuracy": self.dense_accuracy,
                "steps": first.steps,
                "visual_tokens": first.visual_tokens,
                "layers": {
                    "visual_mass": first.visual.tolist(),
                    "importance": first.importance.tolist(),
                    "overlap": {str(keep): mass.overlap.tolist() for keep, mass in self.masses.items()},
                    "own_mass": {str(keep): mass.own.tolist() for keep, mass in self.masses.items()},
                },
                "frontier": [
                    {
                        "policy": choice.policy.to_dict(),
                        "mean_visual_reads": choice.reads,
                        "recovered_mass": choice.recovered,
                        "best_for_its_reads": choice in front,
                    }
                    for choice in self.choices
                ],
                "verified": [verification.to_dict() for verification in self.verified],
                "environment": self.loaded.environment,
            },
        }


def tell_cut(cut: int, pages: int, max_new_tokens: int) -> str:
    """How many of the pages dense reading did not end within its length."""
    were = "was" if cut == 1 else "were"
    return f"{cut} of {plural(pages, 'page')} {were} cut after {plural(max_new_tokens, 'token')}"


def write_policy(path: Path, calibration: Calibration) -> None:
    """Write policy.json, whole."""
    data = json.dumps(_finite(calibration.to_dict()), indent=2, allow_nan=False) + "\n"
    with whole_file(path) as part:
        part.write_text(data, encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinity: a retention over a page of which dense read nothing becomes null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
