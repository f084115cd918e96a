"""Build the plugin library through CMake, once, into build/ of the checkout."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fastocr_trt.errors import FastOCRError, MissingDependencyError

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {False: ("fastocr_plugin_cpu", "plugin_driver", "plugin_test", "plugin_abuse"), True: ("fastocr_plugin",)}


def build_directory(cuda: bool) -> Path:
    return ROOT / "build" / ("plugin_cuda" if cuda else "plugin_cpu")


def build_plugin(cuda: bool = False) -> Path:
    """The plugin library, built or brought up to date; other builds of it wait.

    cuda False: libfastocr_plugin_cpu.so, whose kernels run on the CPU, with the programs that test it. True:
    libfastocr_plugin.so for GPUs, which takes minutes. MissingDependencyError where a tool or the headers are absent;
    FastOCRError with the end of the compiler's words where the build fails.
    """
    for tool in ("cmake", "c++", *(("nvcc",) if cuda else ())):
        if shutil.which(tool) is None:
            raise MissingDependencyError(f"{tool} is not installed, which builds the plugin library")
    directory = build_directory(cuda)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "Python3_EXECUTABLE": sys.executable,
            "FASTOCR_CUDA": "ON" if cuda else "OFF",
            "FASTOCR_BUILD_TESTS": "OFF" if cuda else "ON",
        }
        configured = _run("cmake", "-S", ROOT, "-B", directory, *(f"-D{k}={v}" for k, v in options.items()))
        absent = [line for line in configured.splitlines() if "not found" in line and "left out" in line]
        if absent:
            raise MissingDependencyError(absent[0].removeprefix("-- "))
        _run("cmake", "--build", directory, "-j", str(min(2, os.cpu_count() or 1)), "--target", *TARGETS[cuda])
    return directory / "plugins" / f"lib{TARGETS[cuda][0]}.so"


def _run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        end = "\n".join(done.stdout.splitlines()[-30:])
        raise FastOCRError(f"`{' '.join(map(str, command))}` failed with code {done.returncode}:\n{end}")
    return done.stdout


if __name__ == "__main__":
    print(build_plugin(cuda="--cuda" in sys.argv[1:]))
