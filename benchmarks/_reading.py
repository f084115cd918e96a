"""Pages read under methods, each reading kept in a file: a long run may be stopped and goes on where it was."""

from __future__ import annotations

import argparse
import functools
import hashlib
import inspect
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import _common

import fastocr_trt.export.fixation_method as fixation_method
import fastocr_trt.export.masked_reading as masked_reading
from fastocr_trt.counts import plural
from fastocr_trt.demo.pages import LAYOUTS, SEEDS, SIZES, GeneratedPage, generate_page
from fastocr_trt.errors import FastOCRError
from fastocr_trt.export.engine_directory import DEMO_POLICY
from fastocr_trt.export.masked_reading import MaskedReader, Method, Reading
from fastocr_trt.export.source import DEMO, find_checkpoint
from fastocr_trt.export.transformers_reader import TransformersReader
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.option_types import at_least
from fastocr_trt.policy_file import read_policy

CACHE = Path(__file__).parents[1] / "build" / "readings.sqlite"
DEMO_PROMPT = "OCR:\n"


class Readings:
    """Readings by what they follow from, in an SQLite file. One that is there is never made again."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=60)
            self._file.execute("CREATE TABLE IF NOT EXISTS readings (key TEXT PRIMARY KEY, reading TEXT)")
        except (OSError, sqlite3.Error) as error:
            raise FastOCRError(f"--cache {path} cannot be used ({error}); give another file") from None

    def get(self, key: str) -> Reading | None:
        row = self._file.execute("SELECT reading FROM readings WHERE key = ?", (key,)).fetchone()
        return Reading(**json.loads(row[0])) if row else None

    def put(self, items: dict[str, Reading]) -> None:
        """All of them or, where the run is stopped, none."""
        rows = [(key, json.dumps(asdict(reading))) for key, reading in items.items()]
        with self._file:
            self._file.executemany("INSERT OR REPLACE INTO readings VALUES (?, ?)", rows)


@dataclass
class Bench:
    """A model, the pages' size and the limit of a reading; reads pages under methods, `batch` of them together."""

    model: str
    prompt: str
    max_new_tokens: int
    batch: int
    threads: int
    cache: Path

    def __post_init__(self) -> None:
        self.readings = Readings(self.cache)
        self.folder = find_checkpoint(self.model)

    @functools.cached_property
    def reader(self) -> MaskedReader:
        return MaskedReader(TransformersReader(self.folder, threads=self.threads))

    @functools.cached_property
    def model_hash(self) -> str:
        """Of weights, configuration and tokenizer."""
        files = sorted(p for p in self.folder.iterdir() if p.suffix in (".safetensors", ".json", ".jinja"))
        return _hash(*(part for p in files for part in (p.name.encode(), p.read_bytes())))

    def read(self, method: Method, pages: Sequence[GeneratedPage], advance: Callable[[int], None]) -> list[Reading]:
        """One reading a page, those in the cache from there. advance(pages read) is called as it goes."""
        about = (self.model_hash, self.prompt, str(self.max_new_tokens), identity(method))
        keys = [_hash(*about, page.image.size, page.image.tobytes()) for page in pages]
        found = {key: self.readings.get(key) for key in keys}
        missing = [i for i, key in enumerate(keys) if found[key] is None]
        advance(len(pages) - len(missing))
        for start in range(0, len(missing), self.batch):
            some = missing[start : start + self.batch]
            read = self.reader.read([pages[i].image for i in some], self.prompt, method, self.max_new_tokens)
            new = dict(zip((keys[i] for i in some), read, strict=True))
            self.readings.put(new)
            found |= new
            advance(len(some))
        return [found[key] for key in keys]


def identity(method: Method) -> str:
    """What a method's readings follow from: its class, its settings, and the source of both and of the reader."""
    files = {inspect.getsourcefile(kind) for kind in type(method).__mro__ if kind not in (object,)}
    files |= {masked_reading.__file__, fixation_method.__file__}
    settings = {name: value for name, value in vars(method).items() if name != "name" and not name.startswith("_")}
    return _hash(type(method).__name__, repr(sorted(settings.items())), *(Path(f).read_bytes() for f in sorted(files)))


def pages_of(layout: str, count: int, visual_tokens: int) -> list[GeneratedPage]:
    """The first `count` pages of a layout that are for benchmarks."""
    return [generate_page(seed, layout, visual_tokens) for seed in SEEDS["benchmarks"][:count]]


def pages_and_truths(args: argparse.Namespace) -> tuple[dict[str, list[GeneratedPage]], dict[str, list[str]]]:
    """The pages of the options by layout, and what they say."""
    pages = {layout: pages_of(layout, count, args.visual_tokens) for layout, count in args.counts.items()}
    return pages, {layout: [page.text for page in some] for layout, some in pages.items()}


def about_pages(args: argparse.Namespace) -> str:
    """Which pages the options ask for, in words: "100 pages of mono, 20 of columns, 384 visual tokens"."""
    names: dict[int, list[str]] = {}
    for layout, count in args.counts.items():
        names.setdefault(count, []).append(layout)
    parts = [f"{plural(n, 'page')} of {', '.join(some)}" for n, some in names.items()]
    return f"{'; '.join(parts)}; {args.visual_tokens} visual tokens"


def add_arguments(parser: argparse.ArgumentParser, layouts: Sequence[str], pages: int) -> None:
    """Options of the benchmarks that read pages."""
    add = parser.add_argument
    add("--model", default=DEMO, help="folder of a checkpoint, its name on the hub, or demo")
    add("--policy", type=Path, help="a policy as JSON; the demo has one of its own")
    add("--prompt", default=DEMO_PROMPT, help="what is asked after the page")
    add("--layouts", nargs="+", default=list(layouts), metavar="LAYOUT[=PAGES]",
        help=f"layouts of the pages ({', '.join(sorted(LAYOUTS))}), each with a number of pages of its own if it is "
        "given one")  # fmt: skip
    add("--pages", type=at_least(1), default=pages, help="pages of each other layout")
    add("--visual-tokens", type=int, choices=sorted(SIZES), default=384, help="size of the pages")
    add("--max-new-tokens", type=at_least(1), default=660, help="a reading longer than this is cut")
    add("--batch", type=at_least(1), default=10, help="pages read together")
    add("--cache", type=Path, default=CACHE, help="file that keeps readings, so that a stopped run goes on")


def bench_of(args: argparse.Namespace) -> tuple[Bench, FixationPolicy]:
    """The bench and the policy of the options; --quick makes pages few, small and short."""
    if args.quick:
        args.pages, args.visual_tokens, args.max_new_tokens = 2, 64, 60
        args.layouts = [name.partition("=")[0] for name in args.layouts[:1]]
    args.counts = _counts(args.layouts, args.pages)
    bench = Bench(args.model, args.prompt, args.max_new_tokens, args.batch, args.threads, args.cache)
    policy = _policy(args.policy, args.model)
    policy.check(bench.reader.num_layers)
    return bench, policy


def _counts(layouts: Sequence[str], pages: int) -> dict[str, int]:
    """Pages by layout, of --layouts and --pages."""
    counts = {}
    for name, given, count in (layout.partition("=") for layout in layouts):
        if name not in LAYOUTS:
            raise FastOCRError(f"there is no layout {name!r} (--layouts); there are {', '.join(sorted(LAYOUTS))}")
        if given and not (count.isdecimal() and int(count) > 0):
            raise FastOCRError(f"--layouts {name}={count}: the number of pages must be a whole number of at least 1")
        counts[name] = int(count) if given else pages
        if counts[name] > len(SEEDS["benchmarks"]):
            where = f"--layouts {name}={count}" if given else f"--pages is {pages}"
            raise FastOCRError(f"{where}; {len(SEEDS['benchmarks'])} seeds are kept for benchmarks")
    return counts


def _policy(path: Path | None, model: str) -> FixationPolicy:
    """Of a file, or the demo's own."""
    if path is not None:
        return read_policy(path)[0]
    if model != DEMO:
        raise FastOCRError(f"{model} has no policy of its own; give one with --policy, as fastocr-calibrate writes")
    return DEMO_POLICY


def run(main: Callable[[], None]) -> None:
    """As `_common.run`: what was read is kept."""
    _common.run(main, "stopped; what was read is kept, and the same command goes on from there")


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else repr(part).encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()
