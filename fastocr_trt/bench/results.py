"""A run's results: as a record, as JSON that can be read back, and against an earlier run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import FastOCRError
from ..manifest import Manifest
from ..records import record
from .environment import Environment
from .matrix import Case, row_bound
from .measure import Spread, Turns

SCHEMA_VERSION = 1
QUANTITIES = {
    "vision_ms": "prompt",
    "prefill_tokens_per_s": "prompt",
    "first_token_ms": "prompt",
    "step_ms": "decode",
    "decode_tokens_per_s": "decode",
    "attention_ms": "attention",
}
"""What is measured, and by which test."""


@dataclass(frozen=True)
class Result:
    """One case. measured: quantity -> spread, of QUANTITIES. speedup: of `step_ms` and `attention_ms`, the dense
    median over this one, where both were measured; row_bound: what reading fewer cache rows gives attention at best.
    mean_visual_reads: share of the page that a step reads, mean over all layers."""

    case: Case
    num_fixations: int | None
    mean_visual_reads: float
    row_bound: float
    measured: dict[str, Spread]
    speedup: dict[str, float]


@dataclass(frozen=True)
class Run:
    """A whole run. finished: False where Ctrl-C ended it, and the medians are of fewer rounds."""

    environment: Environment
    steps: int
    repeats: int
    warmup: int
    finished: bool
    results: tuple[Result, ...]
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Run:
        """FastOCRError where `path` holds no such run."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(data, dict) and data.get("schema_version") not in (SCHEMA_VERSION, None):
                raise ValueError(f"its schema version is {data['schema_version']}, this version reads {SCHEMA_VERSION}")
            return record(cls, data, "the run")
        except OSError as error:
            raise FastOCRError(f"cannot read {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise FastOCRError(
                f"{path} is not a run of fastocr-bench ({error}); write one with --format json -o"
            ) from None


def results(cases: Sequence[Case], manifest: Manifest, turns: Turns) -> tuple[Result, ...]:
    """Of those cases of which something was measured."""
    measured = {case: _measured(case, turns) for case in cases}
    layers, found = manifest.decoder.num_layers, []
    for case in cases:
        if not measured[case]:
            continue
        dense = measured.get(case.dense, {})
        speedup = {
            name: dense[name].median / measured[case][name].median
            for name in ("step_ms", "attention_ms")
            if case.mode == "fast" and name in dense and name in measured[case]
        }
        fast, visual = case.mode == "fast", case.visual_tokens
        found.append(
            Result(
                case,
                manifest.policy.num_fixations(visual, case.keep) if fast else None,
                manifest.policy.mean_visual_reads(visual, layers, case.keep) if fast else 1.0,
                row_bound(manifest.policy, layers, case),
                measured[case],
                speedup,
            )
        )
    return tuple(found)


def _measured(case: Case, turns: Turns) -> dict[str, Spread]:
    found = {}
    for quantity, test in QUANTITIES.items():
        name = (test, case.prompt if test == "prompt" else case)
        if (spread := turns.spread(name, quantity)) is not None:
            found[quantity] = spread
    return found


@dataclass(frozen=True)
class Change:
    """A quantity in two runs. ratio: new median over old. apart: the two interquartile ranges do not meet."""

    case: Case
    quantity: str
    old: Spread
    new: Spread

    @property
    def ratio(self) -> float:
        return self.new.median / self.old.median

    @property
    def apart(self) -> bool:
        return self.new.low > self.old.high or self.new.high < self.old.low


def check_comparable(old: Run, environment: Environment, cases: Sequence[Case]) -> None:
    """FastOCRError where a run of `cases` may not be compared with `old`, or has no case in common with it."""
    environment.check_comparable(old.environment)
    if not {result.case for result in old.results} & set(cases):
        raise FastOCRError(
            "the earlier run has none of these cases; measure the same sizes, batches, threads, modes and keeps"
        )


def compare(old: Run, new: Run) -> list[Change]:
    """What both runs measured."""
    before = {result.case: result for result in old.results}
    return [
        Change(result.case, quantity, before[result.case].measured[quantity], spread)
        for result in new.results
        if result.case in before
        for quantity, spread in result.measured.items()
        if quantity in before[result.case].measured
    ]
