"""Attention alone, decoding: the sparse stack against the best dense forms there are, and against GroupQueryAttention.

28 layers, 16 query heads, 2 KV heads, head_dim 128, batch 1, layers 2, 11 and 20 focal, keep 5%. Every form attends
the same visual rows and text rows, with caches bound in place. "dense" is the faster of two forms: both banks sliced
to the rows in use, and the visual bank read whole and masked. The row bound is what reading fewer rows could give at
best: L(Nv+Nt) / (F(Nv+Nt) + (L-F)(k+Nt)).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from _common import arguments, header, interleaved_medians, markdown_table, progress, report, run
from _stack import Banks, Shape, Step, grouped_query_attention_model, kinds, stack_model

from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.option_types import at_least

FOCAL = (2, 11, 20)
KEEP = 0.05
TEXT_CAPACITY = 4096


def row_bound(layers: int, whole: int, visual_rows: int, text_rows: int, k: int) -> float:
    everything = visual_rows + text_rows
    return layers * everything / (whole * everything + (layers - whole) * (k + text_rows))


def measure(
    shape: Shape, visual_rows: int, text_rows: int, threads: int, rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Median seconds of one decode step, by form."""
    k = math.ceil(KEEP * visual_rows)
    focal = tuple(layer for layer in FOCAL if layer < shape.layers)
    banks = Banks(shape, visual_rows, text_rows, visual_rows, TEXT_CAPACITY)
    dense = ["dense"] * shape.layers
    policies = {
        "sparse": FixationPolicy(focal, dense_layers=()),
        "sparse, layer 0 dense": FixationPolicy(focal, dense_layers=(0,)),
    }
    steps = {
        "dense sliced": Step(stack_model(shape, dense), banks.inputs(k), threads),
        "dense whole": Step(stack_model(shape, dense, visual_slice=False), banks.inputs(k, whole_visual=True), threads),
        "GroupQueryAttention": Step(grouped_query_attention_model(shape), banks.joined(), threads),
    }
    for name, policy in policies.items():
        for form, sliced in (("", True), (" whole", False)):
            model = stack_model(shape, kinds(shape, policy), visual_slice=sliced)
            steps[name + form] = Step(model, banks.inputs(k, whole_visual=not sliced), threads)
    return interleaved_medians(steps, rounds, clock=clock)


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=at_least(1), default=25, help="measured rounds of each size")
    parser.add_argument(
        "--cpu-time", action="store_true", help="count the thread's processor time, for a machine that does other work"
    )
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time counts one thread; leave --threads at 1")
    clock = time.thread_time if args.cpu_time else time.perf_counter
    shape = Shape(layers=4) if args.quick else Shape()
    sizes = [(256, 64)] if args.quick else [(n, t) for n in (1024, 4096, 16384) for t in (256, 2000)]
    rounds = 2 if args.quick else args.rounds
    rows = []
    with progress() as bar:
        task = bar.add_task("sizes", total=len(sizes))
        for visual_rows, text_rows in sizes:
            seconds = measure(shape, visual_rows, text_rows, args.threads, rounds, clock)
            rows.append(_row(shape, visual_rows, text_rows, seconds))
            bar.advance(task)
    columns = ["visual / text rows", "dense, ms", "sparse, ms", "sparse vs dense", "row bound", "layer 0 dense too"]
    columns += ["its row bound", "GroupQueryAttention, ms", "sparse vs GroupQueryAttention"]
    about = ["processor time of the thread, not wall time"] if args.cpu_time else []
    report(args, "attention_stack", header(args.threads), *about, markdown_table(columns, rows))


def _row(shape: Shape, visual_rows: int, text_rows: int, seconds: dict[str, float]) -> list[str]:
    k = math.ceil(KEEP * visual_rows)
    focal = sum(layer < shape.layers for layer in FOCAL)

    def best(name: str, other: str) -> tuple[float, str]:
        form = min((name, other), key=seconds.__getitem__)
        return seconds[form], " (visual bank whole)" * form.endswith("whole")

    dense, dense_form = best("dense sliced", "dense whole")
    sparse, sparse_form = best("sparse", "sparse whole")
    safe, _ = best("sparse, layer 0 dense", "sparse, layer 0 dense whole")
    grouped = seconds["GroupQueryAttention"]
    return [
        f"{visual_rows} / {text_rows}",
        f"{dense * 1e3:.1f}{dense_form}",
        f"{sparse * 1e3:.1f}{sparse_form}",
        f"{dense / sparse:.2f}x",
        f"{row_bound(shape.layers, focal, visual_rows, text_rows, k):.2f}x",
        f"{dense / safe:.2f}x",
        f"{row_bound(shape.layers, focal + 1, visual_rows, text_rows, k):.2f}x",
        f"{grouped * 1e3:.1f}",
        f"{grouped / sparse:.2f}x",
    ]


if __name__ == "__main__":
    run(main)
