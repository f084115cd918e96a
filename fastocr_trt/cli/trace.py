"""fastocr-trace: what the model looked at, as a picture."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..atomic import whole_file
from ..counts import plural
from ..errors import FastOCRError
from . import _common as common
from ._files import cannot_write, check_no_input, file_ids

if TYPE_CHECKING:
    from ..runtime.trace import Trace

DESCRIPTION = """\
Draw traces that `fastocr-parse --trace DIR` wrote. TRACE is such a file, or a folder of them.
.html: the page and its text, each word linked to its box, and the gaze to play; one file that needs no network.
.png: a heat map of all tokens and the words' boxes. .gif: the gaze going over the page. Of several traces the last two
make a file each: out-1.png, out-2.png. A trace that cannot be read is named and left out.
"""
EXAMPLES = """\
  fastocr-parse scan.pdf --trace traces/ -o scan.txt
  fastocr-trace traces/ -o scan.html
  fastocr-trace traces/scan.p1.npz -o page-1.gif
"""
FORMS = (".html", ".png", ".gif")
Made = TypeVar("Made")


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-trace", DESCRIPTION, EXAMPLES)
    parser.add_argument("traces", nargs="+", type=_name, metavar="TRACE", help="file or folder")
    parser.add_argument(
        "-o", "--output", type=_name, required=True, metavar="FILE", help="its ending chooses: .html, .png or .gif"
    )
    return parser


def _name(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; give a file or a folder")  # Path("") is the current folder
    return Path(text)


def find_traces(paths: Sequence[Path]) -> list[Path]:
    """The files named, and those of the folders named in natural order; FastOCRError where there is none."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(path.glob("*.npz"), key=lambda file: [_number(part) for part in _PARTS.split(file.name)])
        if not inside:
            raise FastOCRError(f"{path} has no traces (*.npz); `fastocr-parse PAGES --trace {path}` writes them")
        found += inside
    return found


_PARTS = re.compile(r"(\d+)")


def _number(part: str) -> tuple[int, int, str]:
    return (0, int(part), "") if part.isdecimal() else (1, 0, part)


def draw(trace: Trace, form: str) -> bytes:
    """The picture of one trace in the form `.png` or `.gif`."""
    import io

    if form == ".gif":
        from ..tracing.moving import moving_gaze

        return moving_gaze(trace)
    from ..tracing.heat import heat_map

    stream = io.BytesIO()
    heat_map(trace).save(stream, "PNG")
    return stream.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all; into a FIFO or a device as it is."""
    try:
        if not path.exists():  # of a link: what it leads to
            Path(os.path.realpath(path)).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from None


def _attempt(file: Path, make: Callable[[Trace], Made]) -> Made | None:
    """What is made of the trace in `file`; None, and an error told, where that cannot be: the others are drawn."""
    from ..runtime.trace import Trace

    try:
        return make(Trace.load(file))
    except FastOCRError as error:
        common.complain(str(error) if str(file) in str(error) else f"{file}: {error}")
        return None


def _targets(output: Path, form: str, files: Sequence[Path]) -> list[Path]:
    """The files to write, for HTML one, else one for each trace. FastOCRError where one cannot be."""
    if form == ".html" or len(files) == 1:
        targets = [output]
    else:
        targets = [output.with_name(f"{output.stem}-{number}{output.suffix}") for number in range(1, len(files) + 1)]
    inputs = file_ids(files)
    for target in targets:
        if target.is_dir():
            raise FastOCRError(f"cannot write {target}: it is a directory; name a file")
        check_no_input(target, inputs, "a trace to draw")
    return targets


def _command(options: argparse.Namespace) -> int:
    output, form = options.output, options.output.suffix.lower()
    if form not in FORMS:
        raise FastOCRError(
            f"{output} {f'ends in {form!r}' if form else 'has no ending'}; end it in one of {', '.join(FORMS)}"
        )
    files = find_traces(options.traces)
    targets = _targets(output, form, files)
    if form == ".html":
        drawn = _draw_page(output, files)
    else:
        drawn = 0
        for file, target in zip(files, targets, strict=True):
            content = _attempt(file, lambda trace: draw(trace, form))
            if content is not None:
                _write(target, content)
                common.note(f"{target} shows {file}")
                drawn += 1
    if drawn == len(files):
        return common.EXIT_OK
    if drawn:
        return common.EXIT_PARTIAL
    if len(files) > 1:
        raise FastOCRError(f"none of {len(files):,} traces could be drawn, so nothing was written")
    return common.EXIT_MISTAKE


def _draw_page(output: Path, files: Sequence[Path]) -> int:
    """One HTML file of all traces that can be read; how many those are."""
    from ..tracing.browser import page_of

    read = {}
    for file in files:
        trace = _attempt(file, lambda trace: trace)
        if trace is not None:
            read[file] = trace
    if read:
        _write(output, page_of(list(read.values())).encode("utf-8"))
        common.note(f"{output} shows {next(iter(read)) if len(read) == 1 else plural(len(read), 'trace')}")
    return len(read)


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-trace with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
