"""Build the compiled half with cmake, from Python: for the tests and for checks on a GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastocr_trt.errors import FastOCRError, MissingDependencyError


def missing_tool(*, cuda: bool = False) -> str | None:
    """The name of a tool that a build needs and this machine lacks; None where all are there."""
    places = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin"))  # where CMake looks for nvcc
    wanted = ["cmake", "c++", *(["nvcc"] if cuda else [])]
    return next((tool for tool in wanted if shutil.which(tool, path=places) is None), None)


def build(source: Path, directory: Path, targets: Sequence[str], options: Mapping[str, str]) -> None:
    """Bring `targets` up to date in `directory`, one process at a time.

    options: cmake's -D. MissingDependencyError where headers are absent and the targets left out for that; FastOCRError
    with the end of the output where a command fails.
    """
    import fcntl  # builds are for Linux; the module must import everywhere

    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        defined = {"Python3_EXECUTABLE": sys.executable, **options}
        configured = _run("cmake", "-S", source, "-B", directory, *(f"-D{k}={v}" for k, v in defined.items()))
        absent = [line for line in configured.splitlines() if "not found" in line and "left out" in line]
        if absent:
            raise MissingDependencyError(absent[0].removeprefix("-- "))
        _run("cmake", "--build", directory, "--parallel", str(min(2, os.cpu_count() or 1)), "--target", *targets)


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-30:])
        raise FastOCRError(f"`{' '.join(map(str, command))}` failed with code {done.returncode}:\n{end}")
    return done.stdout
