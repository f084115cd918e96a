"""A run for people (Markdown) and for programs (CSV)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import asdict, fields

from ..counts import plural
from .matrix import Case
from .measure import Spread
from .results import QUANTITIES, Change, Result, Run

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
    """The header, and a table of a row a case; what is the same in all rows stands above it."""
    if not run.results:
        return "\n".join([*_bullets(run.environment.lines()), "", "Nothing was measured."]) + "\n"
    shown, same = _split([result.case for result in run.results])
    quantities = [q for q in QUANTITIES if any(q in result.measured for result in run.results)]
    heads = [CASE_NAMES[name] for name in shown] + [NAMES[q] for q in quantities]
    fast = any(result.speedup for result in run.results)
    speedups = [name for name in ("step_ms", "attention_ms") if any(name in r.speedup for r in run.results)]
    if fast:
        heads += [{"step_ms": "step, dense/fast", "attention_ms": "attention, dense/fast"}[name] for name in speedups]
        heads += ["row bound of attention", "visual reads"]
    rows = []
    for result in run.results:
        cells = [_value(getattr(result.case, name)) for name in shown]
        cells += [_spread(result.measured.get(quantity)) for quantity in quantities]
        if fast:
            cells += [f"{result.speedup[name]:.2f}x" if name in result.speedup else "" for name in speedups]
            is_fast = result.case.mode == "fast"
            cells += [f"{result.row_bound:.2f}x" if is_fast else "", f"{result.mean_visual_reads:.0%}"]
        rows.append(cells)
    rounds = max(s.count for result in run.results for s in result.measured.values())
    about = f"Median and quartiles of {plural(rounds, 'round')} in turns ({plural(run.steps, 'decode step')} in each)."
    if not run.finished:
        about += f" Stopped before all {run.repeats} rounds were done."
    return "\n".join([*_bullets([*run.environment.lines(), *same, about]), "", _table(heads, rows), ""])


def csv_text(run: Run) -> str:
    """A line a case; the machine, the versions and the model are repeated in each."""
    environment = run.environment
    machine = {f"machine_{name}": value for name, value in asdict(environment.machine).items()}
    versions = " ".join(f"{name}={version}" for name, version in environment.versions.items())
    common = {
        "date": environment.date,
        "fastocr_version": environment.fastocr_version,
        "versions": versions,
        **machine,
        "model": environment.model["name"],
        "num_layers": environment.model["num_layers"],
        "dtype": environment.model["dtype"],
        "weights": environment.model["weights"],
        "finished": run.finished,
        "steps": run.steps,
    }
    parts = ("median", "low", "high", "count")
    columns = [*common, *CASE_NAMES, "num_fixations", "mean_visual_reads", "row_bound"]
    columns += [f"{quantity}_{part}" for quantity in QUANTITIES for part in parts]
    columns += ["step_speedup", "attention_speedup"]
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    for result in run.results:
        row = {**common, **asdict(result.case), **_measured(result)}
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue()


def comparison(old: Run, new: Run, changes: Sequence[Change]) -> str:
    """Old against new, as Markdown."""
    shown, same = _split([change.case for change in changes])
    heads = [CASE_NAMES[name] for name in shown] + ["measured", "old", "new", "new/old", ""]
    rows = []
    for change in changes:
        cells = [_value(getattr(change.case, name)) for name in shown]
        cells += [NAMES[change.quantity], _spread(change.old), _spread(change.new), f"{change.ratio:.3f}"]
        rows.append([*cells, "" if change.apart else "quartiles meet"])
    lines = [f"old: fastocr-trt {old.environment.fastocr_version}, {old.environment.date}; new: "]
    lines[0] += f"fastocr-trt {new.environment.fastocr_version}, {new.environment.date}"
    if not changes:
        return f"- {lines[0]}\n\nNothing was measured by both.\n"
    if old.environment.policy != new.environment.policy:
        lines.append("The policies differ: fast mode does not do the same in both.")
    return "\n".join([*_bullets([*lines, *same]), "", _table(heads, rows), ""])


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _split(cases: Sequence[Case]) -> tuple[list[str], list[str]]:
    """Names of the fields that differ between cases, and a line on those that do not."""
    values = {f.name: {getattr(case, f.name) for case in cases} for f in fields(Case)}
    shown = [name for name, found in values.items() if len(found) > 1 or name == "mode"]
    same = [f"{CASE_NAMES[name]} {_value(next(iter(values[name])))}" for name in values if name not in shown]
    same = [text for text in same if not text.endswith(" ")]
    return shown, [", ".join(same)] if same else []


def _measured(result: Result) -> dict[str, object]:
    row: dict[str, object] = {
        "num_fixations": result.num_fixations,
        "mean_visual_reads": result.mean_visual_reads,
        "row_bound": result.row_bound,
        "step_speedup": result.speedup.get("step_ms"),
        "attention_speedup": result.speedup.get("attention_ms"),
    }
    for quantity, spread in result.measured.items():
        row |= {f"{quantity}_{part}": value for part, value in asdict(spread).items()}
    return row


def _value(value: object) -> str:
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _spread(spread: Spread | None) -> str:
    if spread is None:
        return ""
    digits = 0 if spread.median >= 1000 else 1 if spread.median >= 100 else 2 if spread.median >= 10 else 3
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---:"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
