"""What ways of reading fewer visual rows keep of dense reading, at equal mean visual reads, on pages nobody trained on.

Pages are those of `fastocr_trt.demo.pages.SEEDS["benchmarks"]`, the same for all. "Visual reads" is the share of the
page's visual rows that a decode step reads, mean over layers, steps and pages, as it was measured. Each method's keep
is solved so that it reads what FastOCR reads at its policy's keep. Two rows read more, as they say: FastOCR with a
dense prefix, and the two-pass oracle, whose first pass is dense. H2O reads less: each token displaces a row, and its
readings run longer than the dense ones that its cache is sized for. All text is visible to all methods, prefill is
dense, decoding greedy. Intervals are 95% bootstrap intervals over pages, paired for retention and differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from _common import arguments, header, markdown_table, progress, report
from _methods import keep_for
from _methods_eviction import H2O, FastV, RandomRows, SnapKV, Window
from _methods_fixation import EvenlySpaced, NoReuse, SingleLayer, TwoPass
from _reading import Bench, about_pages, add_arguments, bench_of, pages_and_truths, run
from _scores import READABLE, Read, by_layout, columns, readable, row

from fastocr_trt.export.fixation_method import Fixation
from fastocr_trt.export.masked_reading import Dense, Method, Reading
from fastocr_trt.fixation import FixationPolicy

DEFAULT_LAYOUTS = ("mono", "column", "columns", "table", "lines", "small")
KEEPS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.25, 1.0)


def at_reads(policy: FixationPolicy, num_layers: int, reads: float) -> FixationPolicy:
    """The policy with the keep at which it reads `reads` (0 to 1) of the page."""
    whole = sum(policy.kind(layer) != "gathered" for layer in range(num_layers))
    return replace(policy, keep=keep_for(reads, whole, num_layers), min_tokens=1)


def without_reuse(policy: FixationPolicy, num_layers: int, reads: float) -> Iterator[tuple[Method, str]]:
    """The policy with a dense prefix, which reads more; and, at the budget, with fewer focal layers to pay for it."""
    focal = policy.focal_layers
    yield NoReuse(policy), f"{policy.keep:.0%}"
    whole = [len({*range(focal[0]), *policy.dense_layers, *focal[: n + 1]}) for n in range(len(focal))]
    count = sum(n <= reads * num_layers for n in whole)
    if count and count < len(focal):
        method = NoReuse(replace(policy, focal_layers=focal[:count]))
        method.policy = at_reads(method.policy, num_layers, reads)
        yield method, f"{method.policy.keep:.1%}"


def methods(policy: FixationPolicy, num_layers: int, reads: float, expected: int) -> Iterator[tuple[Method, str]]:
    """All but dense, with the keep to show. reads: the budget, 0 to 1; expected: tokens of a page, as dense wrote."""
    yield Fixation(policy), f"{policy.keep:.0%}"
    yield from without_reuse(policy, num_layers, reads)
    for method in (SingleLayer(policy), EvenlySpaced(policy, num_layers)):
        method.policy = at_reads(method.policy, num_layers, reads)
        yield method, f"{method.policy.keep:.1%}"
    yield TwoPass(policy), f"{policy.keep:.0%}"
    pruned = keep_for(reads, FastV.first, num_layers)
    for method in (SnapKV(reads), FastV(pruned), H2O(reads, expected), Window(reads), RandomRows(reads)):
        yield method, f"{method.keep:.1%}"


def sweep(policy: FixationPolicy, keeps: tuple[float, ...]) -> Iterator[tuple[Method, str]]:
    """FastOCR at several keeps."""
    for keep in keeps:
        # The policy's own keep was read already, for the comparison.
        yield Fixation(policy) if keep == policy.keep else Fixation(policy, keep), f"{keep:.0%}"


def read_all(bench: Bench, pages: dict, policy: FixationPolicy, reads: float, keeps, bar) -> tuple[list, list]:
    """Dense and the methods, then FastOCR's keeps, each with its readings of all layouts."""
    count = sum(map(len, pages.values()))
    ways = 1 + len([*methods(policy, bench.reader.num_layers, reads, 0), *keeps])
    task = bar.add_task("dense", total=count * ways)

    def read(method: Method, layout: str) -> list[Reading]:
        bar.update(task, description=f"{method.name}, {layout}")
        return bench.read(method, pages[layout], lambda done: bar.advance(task, done))

    dense, compared, swept = Read("dense"), {}, {}
    for layout in pages:
        dense.by_layout[layout] = read(Dense(), layout)
        expected = round(float(np.mean([len(r.token_ids) for r in dense.by_layout[layout]])))
        for table, some in (
            (compared, methods(policy, bench.reader.num_layers, reads, expected)),
            (swept, sweep(policy, keeps)),
        ):
            for method, keep in some:
                way = table.setdefault((method.name, keep), Read(method.name, keep))
                way.by_layout[layout] = read(method, layout)
    return [dense, *compared.values()], list(swept.values())


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    add_arguments(parser, DEFAULT_LAYOUTS, pages=20)
    args = parser.parse_args()
    bench, policy = bench_of(args)
    pages, truths = pages_and_truths(args)
    num_layers = bench.reader.num_layers
    reads = policy.mean_visual_reads(args.visual_tokens, num_layers)
    with progress() as bar:
        compared, swept = read_all(bench, pages, policy, reads, (0.0, 0.05) if args.quick else KEEPS, bar)
    dense, fastocr = compared[:2]
    pooled = readable(dense, truths)
    about = (
        f"{about_pages(args)}. "
        f"FastOCR's policy: focal layers {list(policy.focal_layers)}, dense layers {list(policy.dense_layers)} of "
        f"{num_layers}, keep {policy.keep:.0%}. Budget: {reads:.1%} visual reads."
    )
    over = f"Pooled over the layouts that dense reading reads at least half of: {', '.join(pooled)}."
    heads = columns(fastocr.name)
    table = markdown_table(heads, [row(way, dense, fastocr, truths, pooled) for way in compared])
    curve = markdown_table(heads, [row(way, dense, fastocr, truths, pooled) for way in [dense, *swept]])
    layouts = markdown_table(["reading", "keep", *pages], by_layout([*compared, *swept], dense, truths, list(pages)))
    note = f"By layout: character error rate; retention of dense (n/a where dense gets under {READABLE:.0%} right)."
    versions = header(args.threads, "torch", "transformers", "rapidfuzz")
    keep_note = "FastOCR by keep:"
    report(args, "retention", versions, about, over, table, keep_note, curve, note, layouts)


if __name__ == "__main__":
    run(main)
