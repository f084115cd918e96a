"""fastocr-trace: what the model looked at, as a picture."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..atomic import whole_file
from ..counts import plural
from ..errors import FastOCRError
from . import _common as common
from ._files import cannot_write

if TYPE_CHECKING:
    from ..runtime.trace import Trace

DESCRIPTION = """\
Draw traces that `fastocr-parse --trace DIR` wrote. TRACE is such a file, or a folder of them.
.html: the page and its text, each word linked to its box, and the gaze to play; one file that needs no network.
.png: a heat map of all tokens and the words' boxes. .gif: the gaze going over the page. Of several traces the last two
make a file each: out-1.png, out-2.png.
"""
EXAMPLES = """\
  fastocr-parse scan.pdf --trace traces/ -o scan.txt
  fastocr-trace traces/ -o scan.html
  fastocr-trace traces/scan.p1.npz -o page-1.gif
"""
FORMS = (".html", ".png", ".gif")


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-trace", DESCRIPTION, EXAMPLES)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="file or folder")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="its ending chooses: .html, .png or .gif"
    )
    return parser


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
    """Whole or not at all."""
    real = Path(os.path.realpath(path))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(real) as part:
            part.write_bytes(content)
    except OSError as error:
        raise cannot_write(path, error) from None


def _command(options: argparse.Namespace) -> int:
    from ..runtime.trace import Trace

    output, form = options.output, options.output.suffix.lower()
    if form not in FORMS:
        raise FastOCRError(
            f"{output} {f'ends in {form!r}' if form else 'has no ending'}; end it in one of {', '.join(FORMS)}"
        )
    if output.is_dir():
        raise FastOCRError(f"cannot write {output}: it is a directory; name a file")
    files = find_traces(options.traces)
    if form == ".html":
        from ..tracing.browser import page_of

        _write(output, page_of([Trace.load(file) for file in files]).encode("utf-8"))
        common.note(f"{output} shows {files[0] if len(files) == 1 else plural(len(files), 'trace')}")
        return common.EXIT_OK
    failed = 0
    for number, file in enumerate(files, 1):
        name = output if len(files) == 1 else output.with_name(f"{output.stem}-{number}{output.suffix}")
        try:
            content = draw(Trace.load(file), form)
        except FastOCRError as error:  # a page of which nothing was read, or a damaged one: the others are drawn
            failed += 1
            common.complain(str(error) if str(file) in str(error) else f"{file}: {error}")
            continue
        _write(name, content)
        common.note(f"{name} shows {file}")
    if failed:
        return common.EXIT_MISTAKE if failed == len(files) else common.EXIT_PARTIAL
    return common.EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-trace with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
