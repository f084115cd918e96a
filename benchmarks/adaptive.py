"""Does a fixation of changing size beat a fixed one that reads as many visual rows?

Each adaptive setting is read first. Then the fixed budget is read at the keep that gives the same mean visual reads
over the same pages, and the two are compared page by page (95% paired bootstrap intervals). A setting wins where its
character error rate is lower and the interval of the difference excludes 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from _common import arguments, header, markdown_table, progress, report
from _methods import keep_for
from _methods_adaptive import CoveredMass, FixedShare, Widening, at_keep
from _reading import about_pages, add_arguments, bench_of, pages_and_truths, run
from _scores import Read, error_difference, exact_lines, points, readable, retention

from fastocr_trt import metrics
from fastocr_trt.export.fixation_method import Fixation
from fastocr_trt.export.masked_reading import Dense
from fastocr_trt.fixation import FixationPolicy

COVERED = (0.5, 0.7, 0.8, 0.9)
KEEPS = (0.01, 0.02)
TRUSTED = (0.2, 0.5)
FACTOR = 4.0


@dataclass
class Pair:
    """An adaptive reading, and the fixed one of the same mean visual reads, under one policy."""

    policy: FixationPolicy
    adaptive: Read
    fixed: Read


def policies(policy: FixationPolicy) -> list[FixationPolicy]:
    """The policy, then leaner ones that leave more to the fixation: nothing dense, and its first focal layer alone."""
    bare = replace(policy, dense_layers=())
    return list(dict.fromkeys([policy, bare, replace(bare, focal_layers=policy.focal_layers[:1])]))


def settings(policy: FixationPolicy, quick: bool) -> Iterator[Fixation]:
    for covered in COVERED[:1] if quick else COVERED:
        yield CoveredMass(at_keep(policy, policy.keep), covered)
    for keep in KEEPS[:1] if quick else KEEPS:
        for trusted in TRUSTED[:1] if quick else TRUSTED:
            yield Widening(at_keep(policy, keep), trusted, FACTOR)


def twin(policy: FixationPolicy, num_layers: int, reads: float) -> FixedShare:
    """The fixed budget that reads `reads` (0 to 1)."""
    whole = sum(policy.kind(layer) != "gathered" for layer in range(num_layers))
    # What was measured may be less than the whole layers alone by a rounding error.
    return FixedShare(at_keep(policy, keep_for(max(reads, whole / num_layers), whole, num_layers)))


def cells(pair: Pair, dense: Read, truths: dict[str, list[str]], layouts: list[str]) -> list[str]:
    right = [text for layout in layouts for text in truths[layout]]
    adaptive, fixed = pair.adaptive.texts(layouts), pair.fixed.texts(layouts)
    difference = error_difference(adaptive, fixed, right)
    verdict = "wins" if difference.high < 0 else "loses" if difference.low > 0 else "no difference"
    return [
        pair.adaptive.name,
        f"{list(pair.policy.focal_layers)} / {list(pair.policy.dense_layers)}",
        f"{pair.adaptive.reads(layouts):.2%}",
        f"{pair.fixed.reads(layouts):.2%}",
        pair.fixed.keep,
        retention(adaptive, dense.texts(layouts), right),
        retention(fixed, dense.texts(layouts), right),
        f"{exact_lines(adaptive, right):.1%} / {exact_lines(fixed, right):.1%}",
        f"{metrics.character_error_rate(adaptive, right):.2%} / {metrics.character_error_rate(fixed, right):.2%}",
        points(difference),
        verdict,
    ]


COLUMNS = (
    "adaptive reading",
    "focal / dense layers",
    "visual reads",
    "of the fixed",
    "keep of the fixed",
    "retention, adaptive",
    "retention, fixed",
    "exact lines, adaptive / fixed",
    "CER, adaptive / fixed",
    "difference of CER, points",
    "adaptive",
)


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    add_arguments(parser, ("mono",), pages=50)
    args = parser.parse_args()
    bench, policy = bench_of(args)
    pages, truths = pages_and_truths(args)
    pairs = []
    bases = policies(policy)[: 1 if args.quick else None]
    ways = [(base, method) for base in bases for method in settings(base, args.quick)]
    with progress() as bar:
        task = bar.add_task("dense", total=(1 + 2 * len(ways)) * sum(map(len, pages.values())))

        def read(way: Read, method) -> Read:
            for layout, some in pages.items():
                bar.update(task, description=f"{way.name}, {layout}")
                way.by_layout[layout] = bench.read(method, some, lambda done: bar.advance(task, done))
            return way

        dense = read(Read("dense"), Dense())
        pooled = readable(dense, truths)
        for base, method in ways:
            keep = "" if isinstance(method, CoveredMass) else f", keep {method.policy.keep:.0%}"
            adaptive = read(Read(method.name + keep), method)
            fixed = twin(base, bench.reader.num_layers, adaptive.reads(pooled))
            pairs.append(Pair(base, adaptive, read(Read("fixed", f"{fixed.policy.keep:.2%}"), fixed)))
    bounds = CoveredMass(policy, 0.5)
    about = (
        f"{about_pages(args)}; pooled over {', '.join(pooled)}. "
        f"Covered mass: {bounds.least:.1%} to {bounds.most:.0%} of the page's rows."
    )
    parts = [markdown_table(COLUMNS, [cells(pair, dense, truths, pooled) for pair in pairs])]
    for layout in pooled if len(pooled) > 1 else ():
        parts += [f"Layout {layout} alone:"]
        parts += [markdown_table(COLUMNS, [cells(pair, dense, truths, [layout]) for pair in pairs])]
    report(args, "adaptive", header(args.threads, "torch", "transformers", "rapidfuzz"), about, *parts)


if __name__ == "__main__":
    run(main)
