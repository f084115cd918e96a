"""Where the installed commands begin."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fastocr_trt.cli import entry

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
SCRIPTS = re.findall(r'^fastocr-(\w+) = "([\w.]+):(\w+)"$', PROJECT.read_text(encoding="utf-8"), re.MULTILINE)
WHILE_IMPORTING = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.{before})
from {place} import {function}
sys.argv = ["fastocr", "--version"]
sys.exit({function}())
"""


def interrupted(place: str, function: str, module: str, before: str = "default_int_handler"):
    """The command, with Ctrl-C when it begins to import `module`."""
    script = WHILE_IMPORTING.format(place=place, function=function, module=module, before=before)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)


def test_all_commands_are_there():
    assert [name for name, *_ in SCRIPTS] == ["export", "parse", "parity", "doctor", "calibrate", "bench", "trace"]


@pytest.mark.parametrize(("name", "place", "function"), SCRIPTS)
def test_ctrl_c_while_a_command_is_imported_is_one_line(name, place, function):
    done = interrupted(place, function, f"fastocr_trt.cli.{name}")
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: stopped by Ctrl-C\n")


def test_ctrl_c_that_is_ignored_stays_ignored():
    done = interrupted("fastocr_trt.cli.entry", "trace", "fastocr_trt.cli.trace", "SIG_IGN")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("fastocr-trace ")


@pytest.mark.parametrize(("name", "place", "function"), SCRIPTS)
def test_a_command_runs_as_ever(name, place, function, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["fastocr", "--version"])
    with pytest.raises(SystemExit) as stopped:
        getattr(entry, function)()
    assert place == entry.__name__ and stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"fastocr-{name} ") and signal.getsignal(signal.SIGINT) is before


def test_its_exit_code_is_the_commands(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["fastocr-trace", str(tmp_path / "absent.npz"), "-o", "a.png"])
    assert entry.trace() == 2 and "there is no trace" in capsys.readouterr().err
