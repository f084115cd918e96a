"""Where a word was read: how often the box found in the trace is on the word, and what the trace says of wrong words.

Pages are generated, so the true boxes are known; seeds are those of `fastocr_trt.demo.pages.SEEDS["benchmarks"]`, in
order. A word read is compared with the true word that most of its characters are aligned with (Levenshtein); words
without such a one (insertions) have no true place and count only as wrong words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from _common import arguments, header, markdown_table, progress, report, run
from rapidfuzz.distance import Levenshtein

from fastocr_trt.demo.boxed_pages import generate_boxed_page
from fastocr_trt.demo.pages import LAYOUTS, SEEDS, SIZES
from fastocr_trt.demo.word_boxes import WordBox
from fastocr_trt.errors import FastOCRError
from fastocr_trt.option_types import at_least
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.provenance import read_words

RESAMPLES = 1000
Row = tuple[float, ...]


@dataclass
class Measured:
    """Per page the words' rows: centre in line, centre in word, intersection over union; and for all words whether
    it is wrong, the box's confidence, the page's mass, the model's probability."""

    placed: list[np.ndarray] = field(default_factory=list)
    judged: list[np.ndarray] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def add(self, result, truth: str, words: Sequence[WordBox]) -> None:
        trace = result.trace
        placed: list[Row] = []
        judged: list[Row] = []
        for word, true in zip(read_words(trace), true_words(trace.text, truth, words), strict=True):
            tokens = (trace.spans[:, 0] < word.end) & (trace.spans[:, 1] > word.start)
            mass = float(trace.page_mass[tokens].astype(np.float64).mean()) if tokens.any() else 0.0
            wrong = true is None or true.text != word.text
            judged.append((wrong, word.confidence, mass, word.probability))
            if true is not None:
                placed.append(_hits(word.box, true))
        self.placed.append(np.array(placed, float).reshape(-1, 3))
        self.judged.append(np.array(judged, float).reshape(-1, 4))
        self.ended.append(result.finish_reason)


def true_words(text: str, truth: str, words: Sequence[WordBox]) -> list[WordBox | None]:
    """For each word of `text` the one of `words` (of `truth`) that at least half its characters are aligned with."""
    of = np.full(len(truth), -1)
    for number, word in enumerate(words):
        of[word.start : word.end] = number
    aligned = np.full(len(text), -1)
    for part in Levenshtein.opcodes(text, truth):
        if part.tag in ("equal", "replace"):
            size = min(part.src_end - part.src_start, part.dest_end - part.dest_start)
            aligned[part.src_start : part.src_start + size] = of[part.dest_start : part.dest_start + size]
    found: list[WordBox | None] = []
    for place in re.finditer(r"\S+", text):
        near = aligned[place.start() : place.end()]
        near = near[near >= 0]
        enough = 2 * len(near) >= place.end() - place.start()
        found.append(words[int(np.bincount(near).argmax())] if enough else None)
    return found


def _hits(box, true: WordBox) -> Row:
    if box is None:
        return 0.0, 0.0, 0.0
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    inside = [b.left <= x < b.right and b.top <= y < b.bottom for b in (true.line, true.box)]
    return *map(float, inside), overlap(box, true.box)


def overlap(one, two) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    across = min(one[2], two[2]) - max(one[0], two[0])
    down = min(one[3], two[3]) - max(one[1], two[1])
    if across <= 0 or down <= 0:
        return 0.0
    areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one, two)]
    return across * down / (sum(areas) - across * down)


def roc_area(signal: np.ndarray, wrong: np.ndarray) -> float:
    """Chance that a wrong word has a higher `signal` than a right one, ties half; NaN where one kind is absent."""
    wrong = wrong.astype(bool)
    ours, others = signal[wrong][:, None], signal[~wrong][None]
    if not ours.size or not others.size:
        return float("nan")
    return float((ours > others).mean() + (ours == others).mean() / 2)


def interval(pages: Sequence[np.ndarray], statistic) -> str:
    """`statistic` of all pages' rows, with its 95% bootstrap interval over pages."""
    source = np.random.default_rng(0)
    drawn = [
        statistic(np.concatenate([pages[i] for i in source.integers(0, len(pages), len(pages))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    return f"{statistic(np.concatenate(pages)):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--engine", default="engines/demo", help="engine directory")
    parser.add_argument("--pages", type=at_least(1), default=50, help="pages that are read")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="mono", help="of the pages")
    parser.add_argument("--visual-tokens", type=int, choices=sorted(SIZES), default=768, help="size of the pages")
    parser.add_argument("--modes", nargs="+", choices=("fast", "dense"), default=["fast", "dense"], help="ways to read")
    args = parser.parse_args()
    most = len(SEEDS["benchmarks"])
    if not 1 <= args.pages <= most:
        raise FastOCRError(f"--pages is {args.pages}; it must lie in 1 to {most:,}, the seeds kept for benchmarks")
    count, size = (2, 64) if args.quick else (args.pages, args.visual_tokens)
    engine = Engine.load(args.engine, threads=args.threads, trace=True)
    seeds = SEEDS["benchmarks"][:count]
    pages = [generate_boxed_page(seed, args.layout, size) for seed in seeds]
    measured = {mode: Measured() for mode in args.modes}
    batch = engine.manifest.capacities.max_batch
    with progress() as bar:
        task = bar.add_task("pages", total=count * len(measured))
        for mode, found in measured.items():
            for start in range(0, count, batch):
                group = pages[start : start + batch]
                for page, result in zip(group, engine.parse_batch([p.image for p in group], mode=mode), strict=True):
                    found.add(result, page.text, page.words)
                    bar.advance(task)
    policy = engine.manifest.policy
    setting = (
        f"{count} pages of layout {args.layout}, {size} visual tokens, seeds {seeds.start} to {seeds.stop - 1}; engine "
        f"{engine.manifest.model.get('source')}, focal layers {', '.join(map(str, policy.focal_layers))}, "
        f"keep {policy.keep:.0%}. "
    )
    report(args, "provenance", header(args.threads, "rapidfuzz"), setting + INTERVALS, PLACED, *tables(measured))


INTERVALS = "Intervals are 95% bootstrap intervals over pages."
PLACED = (
    "The first table counts the words read that have a true word to be compared with; the second one counts all, since "
    "a word that was made up (fewer than half of its characters are aligned with one true word) has no true place but "
    "is wrong all the same."
)
AREAS = (
    "How well three numbers tell a wrong word from a right one (area under the ROC curve; 0.5 is chance): the box's "
    "confidence (small where the fixation is weak or scattered), the attention that the focal layers gave the page at "
    "all, and, for comparison, the model's own probability."
)


def tables(measured: dict[str, Measured]) -> tuple[str, str, str]:
    """The boxes, a sentence, the doubts."""
    columns = [lambda rows, i=i: float(rows[:, i].mean()) if len(rows) else float("nan") for i in range(3)]
    signals = [lambda rows, i=i: roc_area(-rows[:, i], rows[:, 0]) for i in (1, 2, 3)]
    places, doubts = [], []
    for mode, found in measured.items():
        hits = [interval(found.placed, column) for column in columns]
        places.append([mode, sum(map(len, found.placed)), *hits, found.ended.count("loop")])
        judged = np.concatenate(found.judged)
        areas = [interval(found.judged, signal) for signal in signals]
        doubts.append([mode, len(judged), int(judged[:, 0].sum()), *areas])
    return (
        markdown_table(
            ["mode", "words", "centre in the word's line", "centre in the word", "overlap (IoU)", "ended as loops"],
            places,
        ),
        AREAS,
        markdown_table(["mode", "words", "wrong", "confidence", "page mass", "probability"], doubts),
    )


if __name__ == "__main__":
    run(main)
