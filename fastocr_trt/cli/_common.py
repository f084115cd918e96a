"""The commands' shared look: one way to parse options, to report, to end."""

from __future__ import annotations

import argparse
import atexit
import errno
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from .. import __version__
from ..errors import FastOCRError, MissingDependencyError

EXIT_OK = 0
EXIT_PARTIAL = 1
EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130

EXIT_CODES = """\
exit codes:
  0    done
  1    a page failed, or a check went beyond its tolerance; the rest was delivered
  2    nothing could be done: wrong options, unreadable input, unusable engine
  130  stopped by Ctrl-C; finished pages are kept (143: stopped by SIGTERM, likewise)
"""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Paragraphs as written, and every default shown once."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        takes_value = action.option_strings and action.nargs != 0
        shown = takes_value and action.default is not None and action.default is not argparse.SUPPRESS
        return f"{text} (default: %(default)s)" if text and shown and "default" not in text else text


class _Parser(argparse.ArgumentParser):
    """Tells a wrong option in one line, as every other mistake is told."""

    def error(self, message: str) -> NoReturn:
        complain(f"{message}; see {self.prog} --help")
        self.exit(EXIT_MISTAKE)


def make_parser(name: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with the options that every command has: --version, --debug, --help with examples and exit codes."""
    parser = _Parser(
        prog=name,
        description=description,
        epilog=f"examples:\n{examples.rstrip()}\n\n{EXIT_CODES}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def run(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace], int], argv: Sequence[str] | None
) -> int:
    """Parse argv and run `command`; its exit code, or that of the error it raised. Only --help and bad options exit."""
    _prepare_streams()
    options = parser.parse_args(argv)
    try:
        with _stop_signals():
            code = command(options)
        sys.stdout.flush()
        return code
    except FastOCRError as error:
        return _report(str(error), options.debug, EXIT_MISTAKE)
    except _Stopped as stopped:
        return _report(f"stopped by {stopped.signal.name}", options.debug, 128 + stopped.signal)
    except KeyboardInterrupt:
        return _report("stopped by Ctrl-C", options.debug, EXIT_INTERRUPTED)
    except BrokenPipeError:
        _settle_stdout()  # the reader went away (`| head`): nobody is left to tell
        return EXIT_PARTIAL
    except (OSError, MemoryError) as error:
        where = "" if _settle_stdout() else "standard output"
        return _report(_system_error(error, where, options), options.debug, EXIT_MISTAKE)
    except Exception as error:
        kind = type(error).__name__
        return _report(
            f"this is a defect of fastocr-trt ({kind}: {error}); run again with --debug and report it",
            options.debug,
            EXIT_MISTAKE,
        )


class _Stopped(KeyboardInterrupt):
    """A signal that asks the command to end; whatever cleans up after Ctrl-C cleans up after it."""

    def __init__(self, number: int):
        self.signal = signal.Signals(number)


@contextmanager
def _stop_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP raise _Stopped, once; one that is ignored (nohup) stays ignored."""

    def stop(number: int, frame) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # `timeout` sends it twice, and the second must not end the cleaning up
        raise _Stopped(number)

    numbers = []
    if threading.current_thread() is threading.main_thread():
        named = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
        numbers = [number for number in named if number and signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


class _Closed(io.TextIOBase):
    """Standard output where there is none (`>&-`)."""

    def write(self, text: str) -> NoReturn:
        raise FastOCRError("standard output is closed; leave it open")


def _prepare_streams() -> None:
    """Streams that are there, and that take any text: what their encoding lacks is escaped."""
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _settle_stdout() -> bool:
    """Whether standard output takes what was printed. Otherwise it is dropped, so that the flush at exit does not
    complain."""
    try:
        sys.stdout.flush()
        return True
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False


def _report(text: str, debug: bool, code: int) -> int:
    if debug:
        traceback.print_exc()
    complain(text)
    return code


SMALLER = {
    "max_pixels": "smaller pages (--max-pixels)",
    "batch": "a smaller --batch",
    "engine": "an engine of smaller capacity",
}
"""What takes less memory, by the option that asks for it."""


def _system_error(error: OSError | MemoryError, where: str, options: argparse.Namespace) -> str:
    """where: the place of an error that names no file, empty where that is not known."""
    if isinstance(error, MemoryError):
        ways = " or ".join(way for option, way in SMALLER.items() if option in options)
        return f"out of memory; {f'use {ways}' if ways else 'end other programs, or use a machine with more'}"
    place = error.filename or where
    way_out = "; make room, or write elsewhere" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{f'{place}: ' if place else ''}{error.strerror or error}{way_out}"


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` in one line that a terminal shows as it is: control characters, line ends and changes of direction, which
    a file's name may hold, are escaped as Python does (\\n, \\x1b, \\u202e)."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def warn(text: str) -> None:
    """One line of warning on stderr."""
    print(f"warning: {printable(text)}", file=sys.stderr)


def note(text: str) -> None:
    """One line on stderr that is neither warning nor error."""
    print(f"note: {printable(text)}", file=sys.stderr)


def complain(text: str) -> None:
    """One line of error on stderr, where the command goes on."""
    print(f"error: {printable(text)}", file=sys.stderr)


class _Console(Console):
    """Prints plain strings `printable`."""

    def print(self, *objects: object, **how) -> None:
        super().print(*(printable(each) if isinstance(each, str) else each for each in objects), **how)


def stderr_console() -> Console:
    """Where progress and summaries go; colours and moving bars only on a terminal."""
    return _Console(stderr=True, highlight=False, soft_wrap=True)


def import_exporter() -> Callable:
    """`export_engine`, or MissingDependencyError that names the extra `export`."""
    leave_no_compiler_folder()
    try:
        from ..export.engine_directory import export_engine
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fastocr_trt"):
            raise
        raise MissingDependencyError(
            f"exporting a model needs {error.name}, which is not installed; "
            "install the extra: pip install 'fastocr-trt[export]'"
        ) from None
    return export_engine


def leave_no_compiler_folder() -> None:
    """To be called before torch or transformers is imported, which make a folder for what torch compiles in the
    temporary directory and leave it there.
    Nothing is compiled here: unless the user has a place for it, it goes when the process ends."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder = tempfile.mkdtemp(prefix="fastocr-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder


def size_text(size: int) -> str:
    """Bytes for people: 9.4 MB."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def seconds_text(seconds: float) -> str:
    """A duration for people: 0.8 s, 12 s, 3 min 5 s."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def directory_size(directory: Path) -> int:
    """Bytes of all files in `directory`."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
