"""The command: environment, correctness, times, engines; a Markdown report on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import torch

from fastocr_trt.gpus import gpu_names
from fastocr_trt.machine import package_version

from .. import kernel_library
from . import correctness, engines, speed
from .implementations import Implementation, Kernels, Sdpa, Triton

DESCRIPTION = "Check and time the kernels on this machine's GPU; a Markdown report on stdout, progress on stderr."
SMALL_KERNELS = "the kernels run on the CPU by emulation: their times mean nothing"


def main(argv: list[str] | None = None) -> int:
    """0 where everything is right, 1 where something differs, 2 where the machine cannot run it."""
    parser = argparse.ArgumentParser(prog="tools/gpu_check.sh", description=DESCRIPTION)
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny shapes on the CPU by emulation: tests this program"
    )
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="interleaved rounds per median (15)")
    parser.add_argument("--no-engines", action="store_true", help="leave the TensorRT engines out")
    parser.add_argument(
        "--minutes", type=float, default=9, metavar="N", help="begin no further measurement after this long (9)"
    )
    options = parser.parse_args(argv)
    deadline = time.monotonic() + 60 * options.minutes
    device = "cpu" if options.dry_run else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        print("torch sees no CUDA GPU here; --dry-run tests this program on the CPU", file=sys.stderr)
        return 2
    print(f"# GPU check\n\n{environment(device)}\n")
    implementations = load(device)
    good = report_checks(implementations, device)
    report_speed(implementations, device, 2 if options.dry_run else options.rounds, deadline)
    if device == "cuda" and not options.no_engines:
        good &= report_engines(deadline)
    print(f"\n{'Everything agrees.' if good else 'SOMETHING DIFFERS: see FAIL above.'}")
    return 0 if good else 1


def environment(device: str) -> str:
    """What the figures belong to."""
    packages = ("torch", "triton", "tensorrt", "tensorrt-rtx-cu13", "cuda-python", "onnxruntime")
    versions = ", ".join(f"{name} {package_version(name)}" for name in packages)
    where = f"CPU, dry run: {SMALL_KERNELS}" if device == "cpu" else _gpu()
    return f"{where}; Python {platform.python_version()}, {versions}; {time.strftime('%Y-%m-%d')}"


def _gpu() -> str:
    properties = torch.cuda.get_device_properties(0)
    return (
        f"{properties.name}, sm_{properties.major}{properties.minor}, {properties.multi_processor_count} SMs, "
        f"{properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}; nvidia-smi: {gpu_names() or 'not here'}"
    )


def load(device: str) -> list[Implementation]:
    """What can be compared here, the kernels first; what is missing is said."""
    note(f"building the kernels for the {'CPU' if device == 'cpu' else 'GPU'}")
    start = time.monotonic()
    found: list[Implementation] = [Kernels(kernel_library.KernelLibrary(_build(device))), Sdpa()]
    print(f"Kernels built and loaded in {time.monotonic() - start:.0f} s.")
    if device == "cuda":
        try:
            found.append(Triton())
        except Exception as error:
            print(f"Triton kernels left out: {error}")
    return found


def _build(device: str) -> Path:
    """The kernel library for the CPU, or for this machine's GPU alone, which is quicker than for all."""
    if missing := kernel_library.missing_tool(cuda=device == "cuda"):
        raise SystemExit(f"{missing} is not found; install it to build the kernels")
    if device == "cpu":
        return kernel_library.build()
    major, minor = torch.cuda.get_device_capability()
    return kernel_library.build(cuda=True, architecture=f"{major}{minor}")


def report_checks(implementations: list[Implementation], device: str) -> bool:
    """Print the correctness of every op of ours; whether all is right."""
    print("\n## Against the oracle\n\n| implementation | what | | |\n|---|---|---|---|")
    good = True
    for implementation in implementations:
        if implementation.name == Sdpa.name:
            continue
        note(f"checking the {implementation.name}")
        for what, right, detail in correctness.check(implementation, device, small=device == "cpu"):
            good &= right
            print(f"| {implementation.name} | {what} | {'ok' if right else 'FAIL'} | {detail} |", flush=True)
    return good


def report_speed(implementations: list[Implementation], device: str, rounds: int, deadline: float) -> None:
    """Print both tables; what does not fit in memory or time is named."""
    print(
        f"\n## Times\n\nfp16 on a GPU; {speed.TEXT} text rows, fixation of {speed.KEEP:.0%}; one op of one layer, GB/s "
        "of the K and V that must be read, and the ratio to the fastest dense form.\n"
    )
    steps, prefill, skipped = [], [], []
    print("| visual | batch | op | by | us | GB/s | against dense |\n|---:|---:|---|---|---:|---:|---:|")
    small = device == "cpu"
    for case in (*speed.cases(small), *speed.prefill_cases(small)):
        name = f"{case.visual} visual tokens, batch {case.batch}, {case.rows} rows"
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
        layers = speed.distinct_layers(case, 1 + len(implementations), free, small)
        if time.monotonic() > deadline:
            skipped.append(f"{name}: out of time")
            continue
        if layers < 1:
            skipped.append(f"{name}: a layer needs {case.layer_bytes() / 2**30:.1f} GiB per implementation")
            continue
        note(f"timing {name}")
        timed = speed.measure(case, implementations, device, layers, rounds)
        if case.rows > 1:
            prefill += speed.prefill_rows(timed)
        else:
            for row in speed.op_rows(timed):
                print(f"| {' | '.join(row)} |", flush=True)
            steps += speed.step_rows(timed)
        if device == "cuda":
            torch.cuda.empty_cache()
    print(
        f"\nAttention of a decode step: {len(speed.STEP)} layers, in fast mode 1 dense, 3 focal, the rest gathered.\n"
    )
    print("| visual | batch | mode | by | ms | against dense |\n|---:|---:|---|---|---:|---:|")
    for row in steps:
        print(f"| {' | '.join(row)} |")
    print(f"\nDense attention of a prefill chunk of {speed.CHUNK} rows, one layer.\n")
    print("| visual | batch | by | us | TFLOP/s | against PyTorch |\n|---:|---:|---|---:|---:|---:|")
    for row in prefill:
        print(f"| {' | '.join(row)} |")
    for line in skipped:
        print(f"\nNot measured: {line}.")


def report_engines(deadline: float) -> bool:
    """Print what the demo's engines read, where TensorRT is installed; whether all is right."""
    print("\n## Engines\n")
    good, some = True, False
    if time.monotonic() > deadline:
        print("Not run: out of time.")
        return True
    note("exporting the demo and building its engines")
    architecture = int("{}{}".format(*torch.cuda.get_device_capability()))
    for what, right, detail in engines.check(Path("build") / "gpu_check", architecture, deadline):
        some, good = True, good and right is not False
        print(f"- {'left out' if right is None else 'ok' if right else 'FAIL'}: {what}: {detail}", flush=True)
    if not some:
        print("Neither TensorRT nor TensorRT-RTX is installed: no engine was run.")
    return good


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
