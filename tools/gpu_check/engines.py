"""Where TensorRT or TensorRT-RTX is installed: build the demo's engines, read a page, compare with ONNX Runtime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

MODULES = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
PAGE = Path("examples") / "page-3.png"


def check(folder: Path) -> Iterator[tuple[str, bool, str]]:
    """(what, whether it is right, detail) per library and form of engine; nothing where no library is installed."""
    for backend, module in MODULES.items():
        if importlib.util.find_spec(module) is None:
            continue
        for plugin in ("auto", "none"):
            engine = folder / f"{backend}-{'plugin' if plugin == 'auto' else 'bodies'}"
            built = _run("export", "demo", "-o", engine, "--force", "--backend", backend, "--plugin", plugin)
            what = f"demo engine, {backend}, {'plugin' if plugin == 'auto' else 'bodies'}"
            if built.returncode:
                yield f"{what}: build", False, _last_line(built)
                continue
            for mode in ("dense", "fast"):
                texts = [
                    _run("parse", PAGE, "--engine", engine, "--mode", mode, "--backend", b)
                    for b in ("onnxruntime", backend)
                ]
                same = texts[0].stdout == texts[1].stdout and not any(t.returncode for t in texts)
                failed = next((_last_line(t) for t in texts if t.returncode), "")
                yield f"{what}, {mode}", same, failed or ("same text as ONNX Runtime" if same else "another text")


def _run(command: str, *arguments: object) -> subprocess.CompletedProcess:
    module = f"fastocr_trt.cli.{command}"
    start = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())"]
    return subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True)


def _last_line(done: subprocess.CompletedProcess) -> str:
    return ((done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"])[-1]
