"""A run's results: as a record, as JSON that can be read back, and against an earlier run."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ..counts import plural
from ..errors import FastOCRError
from ..manifest import Manifest
from ..records import record
from .environment import Environment, check_same
from .matrix import Case, Prompt, row_bound
from .measure import ENOUGH_ROUNDS, Spread, Turns

SCHEMA_VERSION = 2
QUANTITIES = {
    "vision_ms": "prompt",
    "prefill_tokens_per_s": "prompt",
    "first_token_ms": "prompt",
    "step_ms": "decode",
    "decode_tokens_per_s": "decode",
    "attention_ms": "attention",
}
"""What is measured, and by which test."""
SPEEDUPS = ("step_ms", "attention_ms")
POSSIBLE = (1e-9, 1e12)
"""What a time in ms, a rate or a ratio may be; outside of it is no measurement, and inside ratios are finite."""


@dataclass(frozen=True)
class Result:
    """One case. measured: quantity -> spread, of QUANTITIES. speedup: of `step_ms` and `attention_ms`, dense over
    this one, round by round, where both were measured; row_bound: what reading fewer cache rows gives attention at
    best. mean_visual_reads: share of the page that a step reads, mean over all layers."""

    case: Case
    num_fixations: int | None
    mean_visual_reads: float
    row_bound: float
    measured: dict[str, Spread]
    speedup: dict[str, Spread]


@dataclass(frozen=True)
class Run:
    """A whole run. provider: of ONNX Runtime. finished: False where Ctrl-C ended it, and the medians are of fewer
    rounds. yardstick: ms of a computation that is the same in every run; None where no round got to it."""

    environment: Environment
    provider: str
    steps: int
    repeats: int
    warmup: int
    finished: bool
    yardstick: Spread | None
    results: tuple[Result, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def rounds(self) -> int:
        """Those that were measured, 0 where nothing was."""
        return max((spread.count for result in self.results for spread in result.measured.values()), default=0)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Run:
        """FastOCRError where `path` holds no such run."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            version = data.get("schema_version") if isinstance(data, dict) else None
            if type(version) is int and version != SCHEMA_VERSION:
                raise ValueError(f"its schema version is {version}, this version reads {SCHEMA_VERSION}")
            run = record(cls, data, "the run")
            _check(run)
            return run
        except OSError as error:
            raise FastOCRError(f"cannot read {path}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise FastOCRError(
                f"{path} is not a run of fastocr-bench ({error}); write one with --format json -o"
            ) from None


def _check(run: Run) -> None:
    """ValueError where `run` is none that was ever measured."""
    for name, text in (("date", run.environment.date), ("fastocr_version", run.environment.fastocr_version)):
        if not re.fullmatch(r"[\w.+: -]+", text):
            raise ValueError(f"the run.environment.{name} is {text!r}")
    if run.yardstick is not None:
        _check_spread(run.yardstick, run.repeats, "the run.yardstick")
    known: set[Case] = set()
    for number, result in enumerate(run.results):
        where = f"the run.results[{number}]"
        if result.case in known:
            raise ValueError(f"{where} is of a case that is there before: {result.case}")
        known.add(result.case)
        for field, names in (("measured", QUANTITIES), ("speedup", SPEEDUPS)):
            for name, spread in getattr(result, field).items():
                if name not in names:
                    raise ValueError(f"{where}.{field} has {name!r}, which is none of {', '.join(names)}")
                _check_spread(spread, run.repeats, f"{where}.{field}.{name}")


def _check_spread(spread: Spread, repeats: int, where: str) -> None:
    least, most = POSSIBLE
    values = spread.low, spread.median, spread.high
    rising = all(a <= b * (1 + 1e-9) for a, b in pairwise(values))  # of equal values they may differ by a rounding
    if not (rising and least <= min(values) and max(values) <= most):
        shown = ", ".join(f"{value:g}" for value in values)
        raise ValueError(f"{where} has the quartiles {shown}, which must not fall and lie in {least:g} to {most:g}")
    if not 1 <= spread.count <= repeats:
        raise ValueError(f"{where} is of {plural(spread.count, 'round')}, and the run has {repeats}")


def results(cases: Sequence[Case], manifest: Manifest, turns: Turns) -> tuple[Result, ...]:
    """Of those cases of which something was measured."""
    measured = {case: _measured(case, turns) for case in cases}
    layers, found = manifest.decoder.num_layers, []
    for case in cases:
        if not measured[case]:
            continue
        fast, visual = case.mode == "fast", case.visual_tokens
        speedup = {}
        for name in SPEEDUPS if fast else ():
            test = QUANTITIES[name]
            if (ratio := turns.ratio((test, case.dense), (test, case), name)) is not None:
                speedup[name] = ratio
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
    """A quantity in two runs. of: a case, or a prompt, which is read alike in all modes. ratio: new median over old.
    machine: the same ratio for the machine itself, in time that a fixed computation takes."""

    of: Case | Prompt
    quantity: str
    old: Spread
    new: Spread
    machine: float = 1.0

    @property
    def ratio(self) -> float:
        return self.new.median / self.old.median

    @property
    def verdict(self) -> str:
        """faster or slower, only where there are rounds enough, and the medians lie apart by more than the spread as
        measured and also after what the machine itself became faster or slower is taken out."""
        if min(self.old.count, self.new.count) < ENOUGH_ROUNDS:
            return "too few rounds"
        rate = self.quantity.endswith("_per_s")
        side = self.new.apart(self.old)
        if not side:
            return "within the spread"
        if self.new.times(self.machine if rate else 1 / self.machine).apart(self.old) != side:
            return "the machine changed"
        return "faster" if (side > 0) == rate else "slower"


def check_comparable(
    old: Run, environment: Environment, cases: Sequence[Case], tests: Sequence[str], steps: int, provider: str
) -> None:
    """FastOCRError where a run of `cases` may not be compared with `old`, or would measure nothing that `old` did.
    That the machine is the same is for `Environment.check_here`."""
    old.environment.check_model(environment)
    check_same("decode steps", old.steps, steps)
    check_same("provider", old.provider, provider)
    before = _by_subject(old)
    wanted = {*cases, *(case.prompt for case in cases)}
    if not any(QUANTITIES.get(quantity) in tests for subject in before.keys() & wanted for quantity in before[subject]):
        raise FastOCRError(
            "the earlier run has none of these cases; measure the same tests, sizes, batches, threads, modes and keeps"
        )


def compare(old: Run, new: Run) -> list[Change]:
    """What both runs measured."""
    before = _by_subject(old)
    machine = new.yardstick.median / old.yardstick.median if old.yardstick and new.yardstick else 1.0
    return [
        Change(subject, quantity, before[subject][quantity], spread, machine)
        for subject, measured in _by_subject(new).items()
        for quantity, spread in measured.items()
        if quantity in before.get(subject, {})
    ]


def _by_subject(run: Run) -> dict[Case | Prompt, dict[str, Spread]]:
    """What was measured of each prompt, and then of each case alone."""
    found: dict[Case | Prompt, dict[str, Spread]] = {}
    for result in run.results:
        for quantity, spread in result.measured.items():
            subject = result.case.prompt if QUANTITIES.get(quantity) == "prompt" else result.case
            found.setdefault(subject, {})[quantity] = spread
    return found
