"""Where TensorRT or TensorRT-RTX is installed: build the demo's engines, read a page, compare with ONNX Runtime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fastocr_trt.backends import MODULES

PAGE = Path("examples") / "page-3.png"
MODES = ("dense", "fast")


def check(folder: Path, architecture: int, deadline: float) -> Iterator[tuple[str, bool | None, str]]:
    """(what, whether it is right, detail) per library and form of engine; nothing where no library is installed.

    folder: for the plugin and the engines, made where it is absent. architecture: of the GPU, such as 89. deadline: of
    time.monotonic; nothing is begun after it. Right is None for what was left out, which the detail explains.
    """
    backends = [name for name, module in MODULES.items() if importlib.util.find_spec(module)]
    if not backends:
        return
    engine = folder / "demo"
    exported = _command("export", "demo", "-o", engine, "--force")
    if exported.returncode:
        yield "demo, export", False, _last_line(exported)
        return
    expected = {mode: _read(engine, mode, "onnxruntime") for mode in MODES}
    plugin, absent = _build_plugin(folder / "plugin", architecture)
    for backend in backends:
        for form in ("plugin", "bodies"):
            what = f"demo engine, {backend}, {form}"
            if form == "plugin" and plugin is None:
                yield what, None, absent
            elif time.monotonic() > deadline:
                yield what, None, "out of time"
            else:
                yield from _check_form(what, engine, backend, plugin if form == "plugin" else "none", expected)


def _check_form(
    what: str, engine: Path, backend: str, plugin: Path | str, expected: dict[str, subprocess.CompletedProcess]
) -> Iterator[tuple[str, bool, str]]:
    """Build the engines of one form, in the place of those before, and read the page in both modes."""
    built = _command("export", engine, "--backend", backend, "--plugin", plugin)
    if built.returncode:
        yield f"{what}: build", False, _last_line(built)
        return
    for mode in MODES:
        texts = (expected[mode], _read(engine, mode, backend))
        failed = next((_last_line(text) for text in texts if text.returncode), "")
        same = not failed and texts[0].stdout == texts[1].stdout
        yield f"{what}, {mode}", same, failed or ("same text as ONNX Runtime" if same else "another text")


def _build_plugin(folder: Path, architecture: int) -> tuple[Path | None, str]:
    """The plugin library for this GPU alone, or None and why it could not be built."""
    configure = (
        "cmake",
        "-S",
        ".",
        "-B",
        folder,
        "-DFASTOCR_BUILD_TESTS=OFF",
        f"-DPython3_EXECUTABLE={sys.executable}",
    )
    for command in (
        (*configure, f"-DFASTOCR_CUDA_ARCHITECTURES={architecture}-real"),
        ("cmake", "--build", folder, "--target", "fastocr_plugin", "--parallel"),
    ):
        done = _run(*command)
        left_out = [line for line in done.stdout.splitlines() if "left out" in line]
        if done.returncode or left_out:
            return None, f"the plugin is not built: {(left_out or [_last_line(done)])[0].removeprefix('-- ')}"
    return next(folder.rglob("libfastocr_plugin.so")), ""


def _read(engine: Path, mode: str, backend: str) -> subprocess.CompletedProcess:
    return _command("parse", PAGE, "--engine", engine, "--mode", mode, "--backend", backend)


def _command(name: str, *arguments: object) -> subprocess.CompletedProcess:
    start = f"import sys; from fastocr_trt.cli.{name} import main; sys.exit(main())"
    return _run(sys.executable, "-c", start, *arguments)


def _run(*command: object) -> subprocess.CompletedProcess:
    return subprocess.run([*map(str, command)], capture_output=True, text=True)


def _last_line(done: subprocess.CompletedProcess) -> str:
    return ((done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"])[-1]
