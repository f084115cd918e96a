"""What every command has in common: help, version, options that are wrong, errors that are told in one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastocr_trt import __version__
from fastocr_trt.cli import _common, bench, calibrate, doctor, export, parity, parse, trace
from fastocr_trt.errors import FastOCRError

COMMANDS = {
    "fastocr-bench": bench.main,
    "fastocr-calibrate": calibrate.main,
    "fastocr-export": export.main,
    "fastocr-trace": trace.main,
    "fastocr-parse": parse.main,
    "fastocr-parity": parity.main,
    "fastocr-doctor": doctor.main,
}


def exit_of(main, argv) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    return stopped.value.code


@pytest.mark.parametrize("name", COMMANDS)
def test_help_teaches(name, capsys):
    assert exit_of(COMMANDS[name], ["--help"]) == 0
    shown = capsys.readouterr().out
    assert f"usage: {name}" in shown
    assert "examples:" in shown and f"  {name} " in shown
    assert "exit codes:" in shown and "130" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_version(name, capsys):
    assert exit_of(COMMANDS[name], ["--version"]) == 0
    assert capsys.readouterr().out == f"{name} {__version__}\n"


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["page.png", "--keep", "1.5"], "'1.5' is not a share of the visual tokens from 0 to 1"),
        (["page.png", "--keep", "-0.1"], "'-0.1' is not a share"),
        (["page.png", "--keep", "nan"], "'nan' is not a share"),
        (["page.png", "--keep", "five"], "'five' is not a share"),
        (["page.png", "--max-new-tokens", "0"], "0 is too small; it must be at least 1"),
        (["page.png", "--max-new-tokens", "many"], "'many' is not a whole number"),
        (["page.png", "--top-p", "2"], "2 lies outside 0 to 1"),
        (["page.png", "--temperature", "-1"], "-1 lies outside 0 to 100"),
        (["page.png", "--threads", "100000"], "100000 is too large; this machine has"),
        (["page.png", "--threads", "99999999999"], "is too large; this machine has"),
        (["page.png", "--threads", "0"], "0 is too small"),
        (["page.png", "--mode", "slow"], "invalid choice: 'slow'"),
        (["page.png", "--modes", "fast"], "unrecognized arguments"),
        ([], "the following arguments are required: INPUT"),
    ],
)
def test_wrong_options_of_parse(argv, told, capsys):
    assert exit_of(parse.main, argv) == 2
    shown = capsys.readouterr()
    assert told in shown.err and not shown.out
    assert shown.err.startswith("error: ") and shown.err.endswith("; see fastocr-parse --help\n")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("layers", ["2,2", "-1", "2,x", ""])
def test_wrong_focal_layers(layers, capsys):
    assert exit_of(export.main, ["demo", f"--focal-layers={layers}"]) == 2
    assert "layer" in capsys.readouterr().err


def run_raising(error: BaseException, argv=(), options=()) -> int:
    """options: of the command, beside those that all have."""

    def command(options):
        raise error

    parser = _common.make_parser("tool", "does things", "  tool")
    for option in options:
        parser.add_argument(option)
    return _common.run(parser, command, list(argv))


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (FastOCRError("keep is 2; the limit is 1"), 2, "error: keep is 2; the limit is 1\n"),
        (KeyboardInterrupt(), 130, "error: stopped by Ctrl-C\n"),
        (PermissionError(13, "Permission denied", "out.txt"), 2, "error: out.txt: Permission denied\n"),
        (OSError(28, "No space left on device"), 2, "error: No space left on device; make room, or write elsewhere\n"),
        (MemoryError(), 2, "error: out of memory;"),
        (ZeroDivisionError("division by zero"), 2, "error: this is a defect of fastocr-trt (ZeroDivisionError"),
    ],
)
def test_an_error_is_one_line_without_traceback(error, code, told, capsys):
    assert run_raising(error) == code
    shown = capsys.readouterr()
    assert shown.err.startswith(told) and shown.err.count("\n") == 1
    assert "Traceback" not in shown.err and not shown.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "end other programs, or use a machine with more"),
        (["--batch"], "use a smaller --batch"),
        (["--max-pixels", "--engine"], "use smaller pages (--max-pixels) or an engine of smaller capacity"),
    ],
)
def test_out_of_memory_only_options_that_are_there_are_advised(options, told, capsys):
    assert run_raising(MemoryError(), options=options) == 2
    assert capsys.readouterr().err == f"error: out of memory; {told}\n"


@pytest.mark.parametrize("way", ["complain", "warn", "note", "console"])
def test_what_a_terminal_would_obey_is_escaped(way, capsys):
    tell = _common.stderr_console().print if way == "console" else getattr(_common, way)
    tell("é頁 \u3000\u200d.png \x1b[31m\r\n\x9b\u202e\u2066\u2028")
    shown = capsys.readouterr().err
    assert shown.endswith("é頁 \u3000\u200d.png " + r"\x1b[31m\r\n\x9b\u202e\u2066\u2028" + "\n")


def test_debug_shows_the_traceback(capsys):
    assert run_raising(FastOCRError("wrong"), ["--debug"]) == 2
    shown = capsys.readouterr().err
    assert "Traceback" in shown and shown.endswith("error: wrong\n")


def test_a_reader_that_goes_away_is_no_error():
    """As in `fastocr-parse book.pdf | head -1`: no traceback, no complaint at exit."""
    script = (
        "import sys\nfrom fastocr_trt.cli._common import make_parser, run\n"
        "sys.exit(run(make_parser('tool', '', ''), lambda options: print('text') or 0, []))"
    )
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", script], stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert done.returncode == 1
    assert done.stderr == ""


def run_process(body: str, before: str = "", **streams) -> subprocess.CompletedProcess:
    """A command of its own process whose work is `body`, after `before`."""
    script = (
        "import os, signal, sys, time\nfrom fastocr_trt.cli._common import make_parser, run\n"
        f"{before}\n"
        f"def command(options):\n    {body}\n"
        "sys.exit(run(make_parser('tool', '', ''), command, []))"
    )
    return subprocess.run([sys.executable, "-c", script], text=True, check=False, **streams)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_as_ctrl_c_does(name):
    """Sent twice, as `timeout` does: what is cleaned up is cleaned up to the end."""
    kill = f"os.kill(os.getpid(), signal.{name})"
    body = f"try: {kill}; time.sleep(60)\n    finally: {kill}; print('cleaned up')"
    # These tests may themselves run under nohup, which SIGHUP's being ignored is inherited from.
    done = run_process(body, f"signal.signal(signal.{name}, signal.SIG_DFL)", capture_output=True)
    assert done.returncode == 128 + getattr(signal, name)
    assert (done.stdout, done.stderr) == ("cleaned up\n", f"error: stopped by {name}\n")


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        done = run_process("os.kill(os.getpid(), signal.SIGHUP); return 0", capture_output=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_that_standard_output_cannot_show():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = run_process(r"print('\u00e9 \udcff'); return 0", capture_output=True, env=environment)
    assert (done.returncode, done.stdout) == (0, "\\xe9 \\udcff\n")


def test_closed_standard_output_is_told():
    done = run_process("print('text')", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert done.stderr == "error: standard output is closed; leave it open\n"


def test_closed_standard_error_leaves_standard_output_alone():
    done = run_process(
        "print('text'); print('x', file=sys.stderr); return 0", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2)
    )
    assert (done.returncode, done.stdout) == (0, "text\n")


def test_a_full_disk_under_standard_output_is_told_once():
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with full.open("w") as stdout:
        done = run_process("print('text'); return 0", stdout=stdout, stderr=subprocess.PIPE, env=buffered)
    assert done.returncode == 2
    assert done.stderr == "error: standard output: No space left on device; make room, or write elsewhere\n"


def test_a_full_disk_under_a_file_names_the_file(tmp_path):
    target = tmp_path / "out.json"
    body = (
        "from fastocr_trt.atomic import whole_file; from pathlib import Path\n"
        f"    with whole_file(Path({str(target)!r})): raise OSError(28, 'No space left on device')"
    )
    done = run_process(body, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr == f"error: {target}: No space left on device; make room, or write elsewhere\n"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (9_400_000, "9.4 MB"), (1500, "1.5 kB"), (3_210_000_000, "3.21 GB")]
)
def test_sizes_for_people(size, text):
    assert _common.size_text(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.84, "0.8 s"), (12.4, "12 s"), (185, "3 min 5 s")])
def test_durations_for_people(seconds, text):
    assert _common.seconds_text(seconds) == text
