"""No copy of a cache in a decode step: time against capacity at a fixed length, and memory over many steps.

The caches are bound in place, so that a step that is given longer buffers and the same rows in use takes as long. A
copy of a cache anywhere would show as time that grows with capacity.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from _common import arguments, header, interleaved_medians, markdown_table, progress, report, run
from _models import filled_session
from _stack import Banks, Shape, Step, kinds, stack_model

from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.manifest import Manifest
from fastocr_trt.option_types import at_least

VISUAL_ROWS, TEXT_ROWS = 768, 192
CAPACITIES = (1024, 2048, 4096, 8192, 16384, 32768)


def engine_steps(directory: Path, threads: int, capacity: int) -> dict:
    """Decode steps of an engine, by mode."""
    policy = Manifest.read(directory).policy
    k = policy.num_fixations(VISUAL_ROWS)
    room = {"max_visual_tokens": capacity, "max_text_tokens": capacity}
    session = filled_session(directory, threads, VISUAL_ROWS, TEXT_ROWS, k, **room)
    return {f"engine {mode}": partial(session.step, mode) for mode in ("dense", "fast")}


def stack_steps(shape: Shape, threads: int, capacity: int) -> dict:
    """Attention-only steps at the shape of Qwen2.5-VL-3B."""
    policy = FixationPolicy((shape.layers // 2,), dense_layers=(0,))
    banks = Banks(shape, VISUAL_ROWS, TEXT_ROWS, capacity, capacity)
    values = banks.inputs(policy.num_fixations(VISUAL_ROWS))
    layers = {"dense": ["dense"] * shape.layers, "fast": kinds(shape, policy)}
    return {f"attention {mode}": Step(stack_model(shape, ops), values, threads) for mode, ops in layers.items()}


def resident() -> float:
    """Resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not tell VmRSS")


def memory_over_steps(directory: Path, threads: int, steps: int) -> list[list[str]]:
    """Resident memory after a tenth of the steps and after all of them, by mode."""
    rows = []
    policy = Manifest.read(directory).policy
    k = policy.num_fixations(VISUAL_ROWS)
    for mode in ("dense", "fast"):
        room = {"max_visual_tokens": VISUAL_ROWS, "max_text_tokens": TEXT_ROWS + steps + 1}
        session = filled_session(directory, threads, VISUAL_ROWS, TEXT_ROWS, k, **room)
        early = 0.0
        for step in range(1, steps + 1):
            session.step(mode)
            if step == max(1, steps // 10):
                early = resident()
        rows.append([mode, f"{early:.1f}", f"{resident():.1f}", f"{resident() - early:+.1f}"])
    return rows


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--engine", type=Path, default=Path("engines/demo"), help="engine directory")
    parser.add_argument("--rounds", type=at_least(1), default=50, help="measured rounds")
    parser.add_argument("--steps", type=at_least(1), default=2000, help="decode steps of the memory run")
    args = parser.parse_args()
    capacities = CAPACITIES[:2] if args.quick else CAPACITIES
    shape = Shape(layers=2 if args.quick else 4)
    rows: dict[str, list[str]] = {}
    with progress() as bar:
        task = bar.add_task("capacities", total=len(capacities))
        variants = {}
        for capacity in capacities:
            steps = engine_steps(args.engine, args.threads, capacity) | stack_steps(shape, args.threads, capacity)
            variants |= {(name, capacity): step for name, step in steps.items()}
            bar.advance(task)
        bar.update(task, description="steps")
        time = interleaved_medians(variants, 2 if args.quick else args.rounds)
    for (name, _), value in time.items():
        rows.setdefault(name, [name]).append(f"{value * 1e3:.2f}")
    for name, row in rows.items():
        row.append(f"{time[name, capacities[-1]] / time[name, capacities[0]]:.2f}x")
    columns = ["decode step, ms", *(f"{c:,} rows" for c in capacities), "last / first"]
    about = (
        f"{VISUAL_ROWS} visual and {TEXT_ROWS} text rows in use; both banks have the capacity in the column's head "
        f"(and one prefill chunk). attention: {shape.layers} layers, {shape.heads} query and {shape.kv_heads} KV heads "
        f"of {shape.head_dim}, attention alone."
    )
    steps = 20 if args.quick else args.steps
    memory = markdown_table(
        ["mode", f"resident after {max(1, steps // 10)} steps, MiB", f"after {steps} steps, MiB", "growth, MiB"],
        memory_over_steps(args.engine, args.threads, steps),
    )
    report(args, "capacity", header(args.threads), about, markdown_table(columns, list(rows.values())), memory)


if __name__ == "__main__":
    run(main)
