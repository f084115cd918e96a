"""fastocr-parse: pages in, text out."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__, option_types
from ..counts import plural
from ..errors import FastOCRError, PageError
from . import _common as common
from ._engines import add_machine_options, check_machine_options, check_provider, find_engine, load_engine
from ._output import TextWriter, Writer, make_writer
from ._progress import PageProgress
from ._records import PageRecord, Summary
from ._traces import TraceFolder

if TYPE_CHECKING:
    from rich.console import Console

    from ..runtime import Engine
    from ..runtime.documents import Page

DESCRIPTION = """\
Read pages with an exported engine. INPUT is an image (PNG, JPEG, TIFF, WebP and what else Pillow opens), a PDF, or a
folder of them. Text goes to standard output as it is written; everything else goes to standard error.
"""
EXAMPLES = """\
  fastocr-parse page.png
  fastocr-parse scan.pdf --pages 1-3,7 --dpi 150 -o scan.txt
  fastocr-parse scans/ --format json -o texts/ --engine engines/qwen
  fastocr-parse page.png --mode dense
  fastocr-parse page.png --format json --trace traces/
"""


class Reader:
    """Reads pages with one engine and hands each record on as soon as it is there.

    engine: None where every page is an error and none is needed.
    """

    def __init__(
        self,
        engine: Engine | None,
        options: argparse.Namespace,
        writer: Writer,
        progress: PageProgress,
        summary: Summary,
        traces: TraceFolder | None = None,
    ):
        self.engine = engine
        self.traces = traces
        self.writer = writer
        self.progress = progress
        self.summary = summary
        self.reading = {
            name: getattr(options, name)
            for name in ("prompt", "mode", "keep", "max_new_tokens", "temperature", "top_p", "seed", "resize_to_fit")
        }

    def read(self, pages: Iterator[Page], batch: int) -> None:
        """Every page, `batch` at a time."""
        group: list[Page] = []
        for page in pages:
            group.append(page)
            if len(group) == batch:
                self._group(group)
                self.progress.advance(len(group))
                group = []
        if group:
            self._group(group)
            self.progress.advance(len(group))

    def _group(self, group: list[Page]) -> None:
        good = [page for page in group if page.error is None]
        results: list[Any] = []
        if len(good) > 1:
            try:
                results = self.engine.parse_batch([page.image for page in good], **self.reading)
            except PageError:
                results = []  # one of them does not fit: read them one by one, so that the others are delivered
        share = len(results) or 1
        together = iter(results)
        for page in group:
            for note in page.notes:
                common.warn(note)
            if page.error is not None:
                self._fail(page, str(page.error))
            elif results:
                self._deliver(page, next(together), share)
            else:
                self._alone(page)

    def _alone(self, page: Page) -> None:
        live = self.writer if isinstance(self.writer, TextWriter) and self.writer.file.isatty() else None
        try:
            result = self._stream(page, live)
        except PageError as error:
            self._fail(page, str(error))
            return
        if live:
            self._count(page.name, self._record(page, result), 1)
        else:
            self._deliver(page, result, 1)

    def _stream(self, page: Page, writer: TextWriter | None):
        """Read the page; its text goes to `writer`, a terminal, while it is written."""
        self.progress.page_begins(page.name)
        stream = self.engine.stream(page.image, progress=self.progress.prompt, **self.reading)
        started = False
        try:
            for count, piece in enumerate(stream, 1):
                self.progress.tokens(count)
                if writer is None:
                    continue
                if not started:
                    self.progress.text_begins()
                    writer.start()
                    started = True
                writer.piece(piece)
        finally:
            self.progress.text_begins()
            if started:
                writer.piece("\n")
        return stream.result

    def _deliver(self, page: Page, result, share: int) -> None:
        record = self._record(page, result)
        self.writer.page(record)
        self._count(page.name, record, share)

    def _record(self, page: Page, result) -> PageRecord:
        source = str(page.source)
        trace = None if self.traces is None else str(self.traces.save(result.trace, source, page.index))
        return PageRecord.of(source, page.index, result, trace)

    def _count(self, where: str, record: PageRecord, share: int) -> None:
        self.summary.add(record, share)
        if record.finish_reason == "length":
            common.warn(
                f"{where}: cut off after {plural(record.tokens, 'token')}; raise --max-new-tokens or the engine's limit"
            )
        elif record.finish_reason == "loop":
            common.warn(f"{where}: the model repeated itself; the text is kept up to the end of the loop's first turn")
        if record.unsure:
            common.warn(
                f"{where}: the reader is unsure of what it wrote (mean probability {record.mean_probability:.2f}); "
                "compare it with the page"
            )
        if record.resized_to_fit:
            common.warn(
                f"{where}: made smaller to fit the engine's "
                f"{plural(self.engine.manifest.capacities.max_visual_tokens, 'visual token')}; export with a larger "
                "--max-visual-tokens to read it whole, or refuse with --no-resize"
            )

    def _fail(self, page: Page, error: str) -> None:
        record = PageRecord(str(page.source), page.index, error=error)
        self.writer.page(record)
        self.summary.add(record)
        common.complain(error if str(page.source) in error else f"{page.name}: {error}")


def head(engine: Engine, options: argparse.Namespace) -> dict[str, Any]:
    """What the JSON output says before its pages."""
    manifest = engine.manifest
    return {
        "fastocr_version": __version__,
        "engine": {
            "family": manifest.model.get("family"),
            "source": manifest.model.get("source"),
            "dtype": manifest.dtype,
            "weights": manifest.weights,
            "max_visual_tokens": manifest.capacities.max_visual_tokens,
        },
        "options": {
            "mode": options.mode,
            "keep": manifest.policy.keep if options.keep is None else options.keep,
            "prompt": manifest.prompt.default if options.prompt is None else options.prompt,
            "temperature": options.temperature,
            "top_p": options.top_p,
            "seed": options.seed,
        },
    }


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-parse", DESCRIPTION, EXAMPLES)
    parser.add_argument("inputs", nargs="+", type=Path, metavar="INPUT", help="image, PDF or folder")
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="DIR",
        help="directory that fastocr-export wrote (default: ./engines/demo, else the demo, exported on first use)",
    )

    reading = parser.add_argument_group("reading")
    reading.add_argument("--prompt", metavar="TEXT", help="what to ask of the page (default: the engine's prompt)")
    reading.add_argument(
        "--mode", choices=("fast", "dense"), default="fast", help="dense reads the whole page at every step"
    )
    reading.add_argument(
        "--keep",
        type=option_types.keep,
        metavar="SHARE",
        help="share of the page in a fixation (default: the engine's)",
    )
    reading.add_argument(
        "--max-new-tokens", type=option_types.at_least(1), metavar="N", help="per page (default: the engine's room)"
    )
    reading.add_argument("--temperature", type=option_types.real(0, 100), default=0.0, metavar="T", help="0 is greedy")
    reading.add_argument("--top-p", type=option_types.real(0, 1), default=1.0, metavar="P", help="nucleus for sampling")
    reading.add_argument("--seed", type=option_types.at_least(0), default=0, metavar="N", help="of sampling")

    pages = parser.add_argument_group("pages")
    pages.add_argument("--pages", metavar="LIST", help="of each file, for example 1-3,7 or 5- (default: all)")
    pages.add_argument("--dpi", type=float, default=200, metavar="N", help="at which a PDF is drawn")
    pages.add_argument(
        "--max-pixels", type=option_types.at_least(1), metavar="N", help="refuse larger images (default: 178956970)"
    )
    pages.add_argument(
        "--no-resize",
        dest="resize_to_fit",
        action="store_false",
        help="refuse a page that exceeds the engine's visual tokens instead of making it smaller",
    )

    output = parser.add_argument_group("output")
    output.add_argument("--format", choices=("text", "json"), default="text", help="docs/json_output.md has the fields")
    output.add_argument(
        "-o", "--output", metavar="FILE|DIR/", help="a file, or a folder with a file per input (default: stdout)"
    )
    output.add_argument(
        "--trace",
        type=Path,
        metavar="DIR",
        help="write what the model looked at, a file a page for fastocr-trace; JSON then has the words' boxes",
    )
    output.add_argument("--quiet", action="store_true", help="no progress and no summary; warnings and errors stay")

    machine = parser.add_argument_group("machine")
    machine.add_argument("--batch", type=option_types.at_least(1), default=1, metavar="N", help="pages read at once")
    add_machine_options(machine)
    return parser


def _command(options: argparse.Namespace) -> int:
    from ..runtime.documents import count_pages, iter_pages, list_files
    from ..runtime.options import Reading
    from ..runtime.sampling import Sampler

    started = time.perf_counter()
    # What is wrong with the options, the inputs and the outputs is told before an engine is loaded, or even exported.
    Reading.of(options.prompt, options.mode, {"keep": options.keep, "max_new_tokens": options.max_new_tokens})
    Sampler(options.temperature, options.top_p, options.seed)
    traced = options.trace is not None
    check_machine_options(options.backend, options.provider, traced)
    check_provider(options.provider)
    limits = {} if options.max_pixels is None else {"max_pixels": options.max_pixels}
    pages = iter_pages(options.inputs, pages=options.pages, dpi=options.dpi, **limits)
    count = count_pages(options.inputs, options.pages)
    traces = TraceFolder(options.trace) if traced else None
    console = common.stderr_console()
    streams = options.output is None and sys.stdout.isatty() and options.format == "text"
    engine = None
    writer = make_writer(options.output, options.format, lambda: head(engine, options), list_files(options.inputs))
    summary, complete, quiet = Summary(), False, options.quiet
    try:
        engine = _engine(options, console) if count.readable else None
        progress = PageProgress(console, count.total, not options.quiet, streams)
        with progress:
            Reader(engine, options, writer, progress, summary, traces).read(pages, options.batch)
        complete = True
    except (OSError, FastOCRError):
        quiet = True  # no engine, or the output failed: the error says why, and the summary is of nothing delivered
        raise
    finally:
        writer.close(summary, complete)
        if not quiet and (engine or summary.failed):
            elapsed = common.seconds_text(time.perf_counter() - started)
            console.print(summary.line(elapsed), markup=False)
    if summary.failed:
        return common.EXIT_PARTIAL if summary.pages else common.EXIT_MISTAKE
    return common.EXIT_OK


def _engine(options: argparse.Namespace, console: Console) -> Engine:
    """The engine that the options name, loaded; FastOCRError where it is not for so large a batch."""
    directory = find_engine(options.engine, options.quiet)  # may export the demo, and shows that by itself
    with console.status("loading the engine") if console.is_terminal and not options.quiet else nullcontext():
        traced = options.trace is not None
        engine = load_engine(directory, options.provider, options.threads, options.backend, traced)
    if options.batch > (room := engine.manifest.capacities.max_batch):
        raise FastOCRError(f"--batch {options.batch} exceeds this engine's {room}; export it with --max-batch")
    return engine


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-parse with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
