"""How much of dense reading is kept: FastOCR at several keeps, and eviction at prefill, on pages nobody trained on.

The page seeds are those of `fastocr_trt.demo.pages.SEEDS["benchmarks"]`, in order. Rates are pooled over pages;
intervals are 95% bootstrap intervals over pages (paired for retention). "Visual reads" is the share of the page's
visual rows that a decode step reads, mean over all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from _common import arguments, header, markdown_table, progress, report
from _eviction import POOL, EvictingSession

from fastocr_trt import metrics
from fastocr_trt.demo.pages import LAYOUTS, SEEDS, SIZES, generate_page
from fastocr_trt.runtime import Engine, ParseResult

KEEPS = (0.0, 0.01, 0.02, 0.05, 0.10, 0.25, 1.0)
EVICTION_KEEPS = (0.05, 0.10, 0.25)


@dataclass
class Setting:
    """A way to read, and what it read."""

    name: str
    keep: float | None
    mode: str
    engine: Engine
    batch: int
    texts: list[str]
    reads: list[float]


def settings(engine: Engine, evicting: Engine, quick: bool) -> list[Setting]:
    batch = engine.manifest.capacities.max_batch
    result = [Setting("dense", None, "dense", engine, batch, [], [])]
    keeps = (0.0, 0.05) if quick else KEEPS
    result += [Setting("FastOCR", keep, "fast", engine, batch, [], []) for keep in keeps]
    keeps = (0.05,) if quick else EVICTION_KEEPS
    result += [Setting("eviction at prefill", keep, "dense", evicting, 1, [], []) for keep in keeps]
    return result


def read(setting: Setting, images: Sequence, max_new_tokens: int, advance) -> None:
    """Read the pages, a batch at a time."""
    for start in range(0, len(images), setting.batch):
        pages = images[start : start + setting.batch]
        results = setting.engine.parse_batch(pages, mode=setting.mode, keep=setting.keep, max_new_tokens=max_new_tokens)
        setting.texts += [r.text for r in results]
        setting.reads += [_reads(setting, result) for result in results]
        advance(len(pages))


def _reads(setting: Setting, result: ParseResult) -> float:
    if not isinstance(setting.engine.session, EvictingSession):
        return result.mean_visual_reads
    rows = result.visual_tokens
    return setting.engine.manifest.policy.num_fixations(rows, setting.keep) / rows


def row(setting: Setting, dense: Setting, truths: Sequence[str]) -> list[str]:
    accuracy = metrics.accuracy_interval(setting.texts, truths)
    kept = metrics.retention_interval(setting.texts, dense.texts, truths)
    drift = metrics.character_error_rate(setting.texts, dense.texts)
    exact = sum(text == other for text, other in zip(setting.texts, dense.texts, strict=True))
    return [
        setting.name,
        "" if setting.keep is None else f"{setting.keep:.0%}",
        f"{accuracy.value:.1%} ({accuracy.low:.1%} to {accuracy.high:.1%})",
        f"{kept.value:.1%} ({kept.low:.1%} to {kept.high:.1%})",
        f"{drift:.1%}",
        f"{exact}/{len(truths)}",
        f"{sum(setting.reads) / len(setting.reads):.0%}",
    ]


def main() -> None:
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("--engine", type=Path, default=Path("engines/demo"), help="engine directory")
    parser.add_argument("--pages", type=int, default=50, help="number of pages")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="mono", help="layout of the pages")
    parser.add_argument("--visual-tokens", type=int, choices=sorted(SIZES), default=768, help="size of the pages")
    parser.add_argument("--max-new-tokens", type=int, default=480, help="a page longer than this is cut")
    parser.add_argument("--pool", type=int, default=POOL, help="eviction: neighbours that a vote counts for")
    parser.set_defaults(threads=2)
    args = parser.parse_args()
    count, visual_tokens, limit = (2, 64, 60) if args.quick else (args.pages, args.visual_tokens, args.max_new_tokens)
    engine = Engine.load(args.engine, threads=args.threads)
    session = EvictingSession(args.engine, engine.manifest, threads=args.threads, pool=args.pool)
    evicting = Engine(engine.manifest, session, engine.tokenizer)
    seeds = SEEDS["benchmarks"][:count]
    pages = [generate_page(seed, args.layout, visual_tokens) for seed in seeds]
    images, truths = [p.image for p in pages], [p.text for p in pages]
    runs = settings(engine, evicting, args.quick)
    with progress() as bar:
        task = bar.add_task("pages", total=count * len(runs))
        for setting in runs:
            name = setting.name if setting.keep is None else f"{setting.name} {setting.keep:.0%}"
            bar.update(task, description=name)
            read(setting, images, limit, lambda pages: bar.advance(task, pages))
    policy = engine.manifest.policy
    about = (
        f"{count} pages of layout {args.layout}, {visual_tokens} visual tokens, seeds {seeds[0]} to {seeds[-1]}, "
        f"{sum(map(len, truths)) / count:.0f} characters a page. Policy: focal layers {list(policy.focal_layers)}, "
        f"dense layers {list(policy.dense_layers)} of {engine.manifest.decoder.num_layers}."
    )
    columns = ["reading", "keep", "character accuracy", "retention of dense", "CER against dense output"]
    columns += ["pages equal to dense", "visual reads"]
    table = markdown_table(columns, [row(setting, runs[0], truths) for setting in runs])
    report(args, "retention", header(args.threads, "rapidfuzz"), about, table)


if __name__ == "__main__":
    main()
