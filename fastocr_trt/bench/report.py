"""A run for people (Markdown), for programs (CSV), and against an earlier one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, fields

from ..counts import plural
from .matrix import Case, Prompt
from .measure import ENOUGH_ROUNDS, Spread
from .results import QUANTITIES, SPEEDUPS, Change, Result, Run

NAMES = {
    "vision_ms": "vision, ms",
    "prefill_tokens_per_s": "prefill, tokens/s",
    "first_token_ms": "first token, ms",
    "step_ms": "decode step, ms",
    "decode_tokens_per_s": "decode, tokens/s",
    "attention_ms": "attention alone, ms",
}
CASE_NAMES = {
    "backend": "backend",
    "threads": "threads",
    "batch": "batch",
    "visual_tokens": "visual tokens",
    "text_tokens": "text tokens",
    "mode": "mode",
    "keep": "keep",
}


def markdown(run: Run) -> str:
    """The header, a table of a row a prompt, and one of a row a case; what is the same in all rows stands above."""
    if not run.results:
        return "\n".join([*_bullets(run.environment.lines()), "", "Nothing was measured."]) + "\n"
    shown, same = _split([result.case for result in run.results])
    about = (
        f"Median and quartiles of {run.rounds} rounds in turns ({plural(run.steps, 'decode step')} in each)."
        if run.rounds > 1
        else f"One round ({plural(run.steps, 'decode step')}): what it would be in another is not known."
    )
    if run.provider != "cpu":
        about += f" ONNX Runtime on {run.provider}."
    if not run.finished:
        about += f" Stopped before all {run.repeats} rounds were done."
    head = "\n".join(_bullets([*run.environment.lines(), *same, about])) + "\n"
    return "\n".join([head, *(table + "\n" for table in (_prompts(run, shown), _steps(run, shown)) if table)])


def _prompts(run: Run, shown: Sequence[str]) -> str:
    """A row a prompt, which is read alike in all modes; empty where none was measured. shown: of CASE_NAMES."""
    measured = {result.case.prompt: result.measured for result in run.results}
    quantities = _found(run, ["prompt"])
    shown = [name for name in shown if name not in ("mode", "keep")]
    heads = [CASE_NAMES[name] for name in shown] + [NAMES[quantity] for quantity in quantities]
    rows = [
        [_value(getattr(prompt, name)) for name in shown] + [_spread(spreads.get(quantity)) for quantity in quantities]
        for prompt, spreads in measured.items()
    ]
    return _table(heads, rows) if quantities else ""


def _steps(run: Run, shown: Sequence[str]) -> str:
    """A row a case; empty where neither decode steps nor attention were measured. shown: of CASE_NAMES."""
    quantities = _found(run, ["decode", "attention"])
    speedups = [name for name in SPEEDUPS if any(name in result.speedup for result in run.results)]
    heads = [CASE_NAMES[name] for name in shown] + [NAMES[quantity] for quantity in quantities]
    if speedups:
        heads += [{"step_ms": "step, dense/fast", "attention_ms": "attention, dense/fast"}[name] for name in speedups]
        heads += ["row bound of attention", "visual reads"]
    rows = []
    for result in run.results:
        cells = [_value(getattr(result.case, name)) for name in shown]
        cells += [_spread(result.measured.get(quantity)) for quantity in quantities]
        if speedups:
            cells += [_spread(result.speedup.get(name), "x") for name in speedups]
            is_fast = result.case.mode == "fast"
            cells += [f"{result.row_bound:.2f}x" if is_fast else "", f"{result.mean_visual_reads:.0%}"]
        rows.append(cells)
    return _table(heads, rows) if quantities else ""


def _found(run: Run, tests: Sequence[str]) -> list[str]:
    """Quantities of `tests` that were measured."""
    return [q for q, test in QUANTITIES.items() if test in tests and any(q in r.measured for r in run.results)]


def csv_text(run: Run) -> str:
    """A line a case; what belongs to the whole run is repeated in each."""
    environment = run.environment
    machine = {f"machine_{name}": value for name, value in asdict(environment.machine).items()}
    versions = " ".join(f"{name}={version}" for name, version in environment.versions.items())
    common = {
        "schema_version": run.schema_version,
        "date": environment.date,
        "fastocr_version": environment.fastocr_version,
        "python": environment.python,
        "versions": versions,
        **machine,
        **{f"model_{name}": value for name, value in environment.model.items()},
        "policy": json.dumps(environment.policy),
        "provider": run.provider,
        "steps": run.steps,
        "repeats": run.repeats,
        "warmup": run.warmup,
        "finished": run.finished,
        **({f"yardstick_ms_{part}": value for part, value in asdict(run.yardstick).items()} if run.yardstick else {}),
    }
    parts = [part.name for part in fields(Spread)]
    columns = [*common, *CASE_NAMES, "num_fixations", "mean_visual_reads", "row_bound"]
    names = [*QUANTITIES, *(f"{name}_speedup" for name in SPEEDUPS)]
    columns += [f"{name}_{part}" for name in names for part in parts]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for result in run.results:
        row = {**common, **asdict(result.case), **_measured(result)}
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue()


def comparison(old: Run, new: Run, changes: Sequence[Change]) -> str:
    """Old against new, as Markdown."""
    shown, same = _split([change.of for change in changes])
    heads = [CASE_NAMES[name] for name in shown] + ["measured", "old", "new", "new/old", "change"]
    rows = []
    for change in changes:
        cells = [_value(getattr(change.of, name, None)) for name in shown]
        cells += [NAMES[change.quantity], _spread(change.old), _spread(change.new), f"{change.ratio:.3f}"]
        rows.append([*cells, change.verdict])
    lines = [f"old: fastocr-trt {old.environment.fastocr_version}, {old.environment.date}; new: "]
    lines[0] += f"fastocr-trt {new.environment.fastocr_version}, {new.environment.date}"
    if not changes:
        return f"- {lines[0]}\n\nNothing was measured by both.\n"
    if old.environment.policy != new.environment.policy:
        lines.append("The policies differ: fast mode does not do the same in both.")
    if old.yardstick is not None and new.yardstick is not None:
        lines.append(
            f"The machine itself: {_spread(old.yardstick)} ms for a fixed computation in the old run and "
            f"{_spread(new.yardstick)} ms in the new one, new/old {new.yardstick.median / old.yardstick.median:.3f}."
        )
    lines.append(
        f"Faster or slower: both have {ENOUGH_ROUNDS} rounds or more, and the medians lie further apart than both "
        "interquartile ranges together, with and without what the machine itself changed. All else may be noise."
    )
    return "\n".join([*_bullets([*lines, *same]), "", _table(heads, rows), ""])


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _split(cases: Sequence[Case | Prompt]) -> tuple[list[str], list[str]]:
    """Names of the fields that differ between cases, and a line on those that do not. Prompts have neither mode nor
    keep."""
    values = {f.name: {getattr(case, f.name) for case in cases if hasattr(case, f.name)} for f in fields(Case)}
    shown = [name for name, found in values.items() if len(found) > 1 or (name == "mode" and found)]
    same = [f"{CASE_NAMES[name]} {_value(next(iter(values[name] or [None])))}" for name in values if name not in shown]
    same = [text for text in same if not text.endswith(" ")]
    return shown, [", ".join(same)] if same else []


def _measured(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "num_fixations": result.num_fixations,
        "mean_visual_reads": result.mean_visual_reads,
        "row_bound": result.row_bound,
    }
    spreads = result.measured | {f"{name}_speedup": spread for name, spread in result.speedup.items()}
    for quantity, spread in spreads.items():
        row |= {f"{quantity}_{part}": value for part, value in asdict(spread).items()}
    return row


def _value(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _spread(spread: Spread | None, unit: str = "") -> str:
    """Median and quartiles; the value alone where there was one round, which has no spread."""
    if spread is None:
        return ""
    digits = 0 if spread.median >= 1000 else 1 if spread.median >= 100 else 2 if spread.median >= 10 or unit else 3
    median = f"{spread.median:.{digits}f}{unit}"
    return f"{median} ({spread.low:.{digits}f} to {spread.high:.{digits}f})" if spread.count > 1 else median


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---:"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
