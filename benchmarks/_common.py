"""What every benchmark here shares: the header, interleaved medians, Markdown tables, and where results are kept."""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from fastocr_trt.atomic import whole_file
from fastocr_trt.counts import plural
from fastocr_trt.errors import FastOCRError
from fastocr_trt.machine import package_version, processor
from fastocr_trt.option_types import threads

# Before a benchmark imports them, which it would do with a traceback.
if absent := [package for package in ("torch", "transformers", "onnx", "rapidfuzz") if not find_spec(package)]:
    sys.exit(f"error: benchmarks need {', '.join(absent)}: pip install -c constraints.txt -e '.[export,test]'")

RESULTS = Path(__file__).parent.parent / "docs" / "results.md"


def arguments(description: str) -> argparse.ArgumentParser:
    """A parser with the options that every benchmark takes."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run: small sizes, few rounds, numbers worthless")
    parser.add_argument("--threads", type=threads, default=1, help="threads of one graph call")
    parser.add_argument("--save", action="store_true", help="write the table into docs/results.md")
    return parser


def run(main: Callable[[], None], stopped: str = "stopped") -> None:
    """`main`, with a user's mistake as one sentence, and a stopped run as what it is. stopped: what is said of that."""
    try:
        main()
    except FastOCRError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(stopped)


def interleaved_medians(
    variants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each variant; every round runs all of them, in an order of its own.

    A machine that slows down for a while then slows all variants alike, and none runs on a cache that its own last
    call left warm. clock: `time.thread_time` leaves out the time that other processes took; for one thread only.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    order = list(variants)
    source = random.Random(0)
    for number in range(warmup + rounds):
        source.shuffle(order)
        for name in order:
            start = clock()
            variants[name]()
            if number >= warmup:
                times[name].append(clock() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is left-aligned, the others right-aligned."""
    lines = [columns, ["---"] + ["---:"] * (len(columns) - 1), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def header(threads: int, *packages: str) -> str:
    """One line on the machine, the threads and the versions that the numbers belong to."""
    names = ("numpy", "onnxruntime", *packages)
    versions = ", ".join(f"{name} {package_version(name)}" for name in dict.fromkeys(names))
    return (
        f"{processor()}, {os.cpu_count()} cores, {plural(threads, 'thread')}; "
        f"Python {platform.python_version()}, {versions}; {time.strftime('%Y-%m-%d')}"
    )


def report(args: argparse.Namespace, name: str, *parts: str) -> None:
    """Print the parts; with --save put them into docs/results.md between the markers of `name`."""
    text = "\n\n".join(parts)
    print(text)
    if args.save and args.quick:
        print("a --quick run is not saved: its numbers mean nothing", file=sys.stderr)
    elif args.save:
        save(RESULTS, name, text)


def save(path: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of `name` in a Markdown file; markers that are absent are appended."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    old = path.read_text(encoding="utf-8") if path.exists() else "# Results\n"
    if begin not in old:
        old += f"\n{begin}\n{end}\n"
    before, rest = old.split(begin, 1)
    after = rest.split(end, 1)[1]
    with whole_file(path) as part:
        part.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def progress():
    """A rich progress bar on stderr, gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
