"""Build the plugin library through CMake, once, into build/ of the checkout."""

from __future__ import annotations

import sys
from pathlib import Path

from fastocr_trt.errors import MissingDependencyError
from tools import cmake

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
    if tool := cmake.missing_tool(cuda=cuda):
        raise MissingDependencyError(f"{tool} is not installed, which builds the plugin library")
    directory = build_directory(cuda)
    options = {
        "CMAKE_BUILD_TYPE": "Release",
        "FASTOCR_CUDA": "ON" if cuda else "OFF",
        "FASTOCR_BUILD_TESTS": "OFF" if cuda else "ON",
    }
    cmake.build(ROOT, directory, TARGETS[cuda], options)
    return directory / "plugins" / f"lib{TARGETS[cuda][0]}.so"


if __name__ == "__main__":
    print(build_plugin(cuda="--cuda" in sys.argv[1:]))
