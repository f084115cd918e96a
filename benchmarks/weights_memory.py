"""What loading the second decoder graph costs: memory of a process with dense.onnx alone, and with both.

Each row is a fresh process that loads the graphs and runs a decode step of each. Rss and Pss count the pages of the
weights file that are mapped, which the system can drop; Anonymous is memory of the process's own, where a second copy
of the weights would show.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from _common import arguments, header, markdown_table, report, run
from _models import filled_session, random_checkpoint

from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import Manifest
from fastocr_trt.option_types import at_least

FIELDS = ("Rss", "Pss", "Anonymous")
VARIANTS = {"no graph": "none", "dense.onnx": "dense", "dense.onnx and fast.onnx": "both"}


def child(directory: Path, graphs: str, threads: int) -> None:
    """In a process of its own: load, run, print MiB of each field."""
    if graphs != "none":
        # Filling the caches runs the dense graph once.
        session = filled_session(directory, threads, 16, 16, 4, max_visual_tokens=64, max_text_tokens=64)
        if graphs == "both":
            session.step("fast")
    found = dict.fromkeys(FIELDS, 0.0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) / 1024
    print(*(f"{found[name]:.0f}" for name in FIELDS))


def measure(title: str, directory: Path, threads: int) -> list[list[str]]:
    """A row for each variant."""
    size = Manifest.read(directory).files["weights"].size / 2**20
    rows = []
    for name, graphs in VARIANTS.items():
        command = [sys.executable, __file__, "--engine", str(directory), "--threads", str(threads), "--child", graphs]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append([title, f"{size:.0f}", name, *output.split()])
    return rows


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--engine", type=Path, help="engine directory (default: random models of the 3B shape)")
    parser.add_argument("--layers", type=at_least(1), default=8, help="decoder layers of the random model")
    parser.add_argument("--child", choices=sorted(VARIANTS.values()), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.engine, args.child, args.threads)
        return
    rows = []
    if args.engine:
        rows += measure(args.engine.name, args.engine, args.threads)
    else:
        from fastocr_trt.export.engine_directory import export_engine

        with tempfile.TemporaryDirectory() as folder:
            checkpoint = random_checkpoint(Path(folder) / "checkpoint", args.layers, 1, small=args.quick)
            for weights in (None,) if args.quick else (None, "int4"):
                directory = Path(folder) / (weights or "fp32")
                policy = FixationPolicy((args.layers // 2,))
                export_engine(str(checkpoint), directory, weights=weights, policy=policy)
                rows += measure(f"{args.layers} layers, {directory.name}", directory, args.threads)
    columns = ["model", "weights file, MiB", "loaded", *(f"{field}, MiB" for field in FIELDS)]
    report(args, "weights_memory", header(args.threads), markdown_table(columns, rows))


if __name__ == "__main__":
    run(main)
