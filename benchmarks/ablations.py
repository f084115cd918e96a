"""What each choice of the policy is worth: one setting at a time is changed, the rest stays as the policy has it.

Pages, reads, metrics and intervals are as in `retention.py`, with which readings are shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from _common import arguments, header, markdown_table, progress, report
from _methods_fixation import TextWindow
from _reading import Bench, about_pages, add_arguments, bench_of, pages_and_truths, run
from _scores import Read, columns, readable, row

from fastocr_trt.demo.pages import GeneratedPage
from fastocr_trt.export.fixation_method import Fixation
from fastocr_trt.export.masked_reading import Dense, Method
from fastocr_trt.fixation import FixationPolicy

KEEPS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.25, 1.0)
REFRESH = (2, 4, 8, 16)
WINDOWS = (16, 64, 256)
BATCHES = (1, 8)


def focal_sets(policy: FixationPolicy) -> dict[int, tuple[int, ...]]:
    """One, two and three focal layers: the policy's first, its first and last, and one half way between them."""
    first, last = policy.focal_layers[0], policy.focal_layers[-1]
    sets = ((first,), (first, last), (first, (first + last + 1) // 2, last))
    return {len(set(layers)): tuple(sorted(set(layers))) for layers in sets}


def layers(policy: FixationPolicy, num_layers: int) -> Iterator[tuple[str, FixationPolicy]]:
    for count, focal in focal_sets(policy).items():
        dense = tuple(i for i in policy.dense_layers if i not in focal)
        name = f"{count} focal layer{'s' * (count > 1)}: {', '.join(map(str, focal))}"
        yield name, replace(policy, focal_layers=focal, dense_layers=dense)
    if 0 not in policy.focal_layers:
        yield "layer 0 dense", replace(policy, dense_layers=tuple({0, *policy.dense_layers}))
        yield "layer 0 gathered", replace(policy, dense_layers=tuple({*policy.dense_layers} - {0}))
    for layer in range(num_layers):
        yield f"one focal layer, nothing dense: {layer}", replace(policy, focal_layers=(layer,), dense_layers=())


def settings(policy: FixationPolicy, num_layers: int, quick: bool) -> Iterator[tuple[str, Method]]:
    """(what is changed, how it reads)."""
    named = list(layers(policy, num_layers))
    named += [("one fixation for each KV head", replace(policy, per_kv_head=True))]
    named += [("one fixation shared by the heads", replace(policy, per_kv_head=False))]
    named += [(f"keep {keep:.0%}", replace(policy, keep=keep)) for keep in KEEPS]
    named += [(f"a dense step every {n}", replace(policy, refresh_every=n)) for n in REFRESH]
    for name, changed in named[:2] if quick else named:
        yield name, Fixation(changed)
    for width in WINDOWS[:1] if quick else WINDOWS:
        yield f"only the last {width} written tokens", TextWindow(policy, width)


def same_tokens(bench: Bench, pages: dict[str, list[GeneratedPage]], policy: FixationPolicy) -> tuple[int, int]:
    """(pages read alike in batches of 1 and 8, pages); never from the cache."""
    images = [page.image for some in pages.values() for page in some[: BATCHES[-1]]]
    written = []
    for size in BATCHES:
        readings = []
        for start in range(0, len(images), size):
            some = images[start : start + size]
            readings += bench.reader.read(some, bench.prompt, Fixation(policy), bench.max_new_tokens)
        written.append([reading.token_ids for reading in readings])
    return sum(a == b for a, b in zip(*written, strict=True)), len(images)


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    add_arguments(parser, ("mono",), pages=50)
    args = parser.parse_args()
    bench, policy = bench_of(args)
    pages, truths = pages_and_truths(args)
    dense, fastocr = Read("dense"), Read("the policy", f"{policy.keep:.0%}")
    ways: list[tuple[Read, Method]] = [(dense, Dense()), (fastocr, Fixation(policy))]
    for name, method in settings(policy, bench.reader.num_layers, args.quick):
        ways.append((Read(name, f"{method.policy.keep:.0%}"), method))
    with progress() as bar:
        task = bar.add_task("", total=len(ways) * sum(map(len, pages.values())))
        for way, method in ways:
            for layout, some in pages.items():
                bar.update(task, description=f"{way.name}, {layout}")
                way.by_layout[layout] = bench.read(method, some, lambda done: bar.advance(task, done))
        bar.update(task, description="batches of 1 and 8")
        alike, count = same_tokens(bench, pages, policy)
    pooled = readable(dense, truths)
    about = (
        f"{about_pages(args)}. Policy: focal layers "
        f"{list(policy.focal_layers)}, dense layers {list(policy.dense_layers)} of {bench.reader.num_layers}, keep "
        f"{policy.keep:.0%}. Pooled over {', '.join(pooled)}. Pages with the same tokens read one by one and in "
        f"batches of 8: {alike} of {count}."
    )
    table = markdown_table(columns("the policy"), [row(way, dense, fastocr, truths, pooled) for way, _ in ways])
    report(args, "ablations", header(args.threads, "torch", "transformers", "rapidfuzz"), about, table)


if __name__ == "__main__":
    run(main)
