"""fastocr-doctor: what is installed, what works here, why not, and what to do."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .. import __version__
from ..errors import FastOCRError
from ..manifest import Manifest
from . import _common as common

DESCRIPTION = """\
Tell what is installed, which backends work on this machine, why the others do not, and what to do about it. With
--engine, check an engine directory as well.
"""
EXAMPLES = """\
  fastocr-doctor
  fastocr-doctor --engine engines/demo --verify
  fastocr-doctor --json
"""
RUNTIME = ("numpy", "onnxruntime", "pillow", "tokenizers", "pypdfium2", "rich")
EXPORT = ("torch", "transformers", "onnx", "onnxscript", "onnx-ir", "safetensors")
OPTIONAL = ("rapidfuzz", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx")

Status = Literal["works", "absent", "broken", "unverified"]
MARKS = {"works": "ok", "absent": "--", "broken": "XX", "unverified": "??"}


@dataclass(frozen=True)
class Check:
    """One line of the report. `advice` is empty where there is nothing to do."""

    name: str
    status: Status
    detail: str
    advice: str = ""


def versions(names: Sequence[str]) -> dict[str, str | None]:
    """Package -> version, None where it is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def check_cpu() -> Check:
    """ONNX Runtime's CPU provider: what the runtime needs at the least."""
    try:
        import onnxruntime
    except Exception as error:
        return Check("onnxruntime cpu", "broken", f"import fails: {error}", "pip install --force-reinstall onnxruntime")
    return Check("onnxruntime cpu", "works", f"version {onnxruntime.__version__}, fp32 and fp16, int4 and int8 weights")


def check_cuda() -> Check:
    """ONNX Runtime's CUDA provider. That it is listed is seen; that it reads pages right is not verified by us."""
    name = "onnxruntime cuda"
    advice = "pip uninstall onnxruntime; pip install onnxruntime-gpu"
    try:
        import onnxruntime
    except Exception as error:
        return Check(name, "broken", f"import fails: {error}", advice)
    listed = [provider.removesuffix("ExecutionProvider") for provider in onnxruntime.get_available_providers()]
    if "CUDA" not in listed:
        gpu = _gpu()
        reason = f"this onnxruntime has only {', '.join(listed)}"
        return Check(name, "absent", reason if gpu else f"{reason}; no NVIDIA GPU is seen", advice if gpu else "")
    return Check(name, "unverified", "listed by onnxruntime; see docs/verification.md", "try --provider cuda")


def check_export() -> Check:
    """Whether fastocr-export can run."""
    name = "export"
    absent = [package for package, version in versions(EXPORT).items() if version is None]
    if absent:
        return Check(name, "absent", f"not installed: {', '.join(absent)}", "pip install 'fastocr-trt[export]'")
    try:
        importlib.import_module("fastocr_trt.export.engine_directory")
    except Exception as error:
        return Check(name, "broken", f"import fails: {error}", "pip install -c constraints.txt 'fastocr-trt[export]'")
    return Check(name, "works", "torch and transformers are here")


def check_module(name: str, module: str, purpose: str) -> Check:
    """An engine library that this version only reports: nothing of ours uses it yet."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return Check(name, "absent", f"not installed; {purpose}")
    except Exception as error:
        return Check(name, "broken", f"import fails: {error}")
    return Check(name, "unverified", f"version {getattr(found, '__version__', 'unknown')}; {purpose}")


def check_gpu() -> Check:
    gpu = _gpu()
    return Check("nvidia gpu", "works", gpu) if gpu else Check("nvidia gpu", "absent", "nvidia-smi finds none")


def check_engine(directory: Path, verify: bool) -> Check:
    """Sizes (and hashes) of the files, and whether ONNX Runtime loads them here."""
    name = f"engine {directory}"
    try:
        manifest = Manifest.read(directory)
        manifest.check_files(directory, hash_up_to=0)
        if verify:
            from ..runtime import Engine

            Engine.load(directory, verify=True)
    except FastOCRError as error:
        return Check(name, "broken", str(error))
    room = manifest.capacities
    detail = (
        f"{manifest.model.get('family', 'unknown family')}, {manifest.dtype}"
        f"{f', {manifest.weights} weights' if manifest.weights else ''}, "
        f"{common.size_text(common.directory_size(directory))}, "
        f"up to {room.max_visual_tokens} visual and {room.max_text_tokens} text tokens, "
        f"batch of {room.max_batch}, exported by fastocr-trt {manifest.fastocr_version}"
    )
    seen = "hashes match and it loads" if verify else "sizes match; --verify checks hashes and loads it"
    return Check(name, "works", f"{detail}; {seen}")


def _gpu() -> str | None:
    """Names and drivers of NVIDIA GPUs, None where there is none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return "; ".join(done.stdout.strip().splitlines()) or None


def _parser() -> argparse.ArgumentParser:
    parser = common.make_parser("fastocr-doctor", DESCRIPTION, EXAMPLES)
    parser.add_argument("--engine", type=Path, metavar="DIR", help="check this engine directory too")
    parser.add_argument("--verify", action="store_true", help="with --engine: compare hashes and load it")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return parser


def _command(options: argparse.Namespace) -> int:
    if options.verify and options.engine is None:
        raise FastOCRError("--verify checks an engine; name it with --engine DIR")
    probes: list[Callable[[], Check]] = [
        check_cpu,
        check_cuda,
        check_export,
        lambda: check_module("tensorrt", "tensorrt", "not used by this version"),
        lambda: check_module("tensorrt-rtx", "tensorrt_rtx", "not used by this version"),
        check_gpu,
    ]
    checks = [probe() for probe in probes]
    if options.engine is not None:
        checks.append(check_engine(options.engine, options.verify))
    packages = versions((*RUNTIME, *EXPORT, *OPTIONAL))
    system = {"fastocr-trt": __version__, "python": platform.python_version(), "system": platform.platform()}
    if options.json:
        report = {"system": system, "packages": packages, "checks": [asdict(check) for check in checks]}
        print(json.dumps(report, indent=2))
    else:
        _print_report(system, packages, checks)
    # What must work is what this machine was asked for: the CPU, and the engine that was named.
    needed = [check for check in checks if check.name.startswith(("onnxruntime cpu", "engine "))]
    return common.EXIT_MISTAKE if any(check.status == "broken" for check in needed) else common.EXIT_OK


def _print_report(system: dict[str, str], packages: dict[str, str | None], checks: list[Check]) -> None:
    for name, value in system.items():
        print(f"{name:<16} {value}")
    print()
    for name, version in packages.items():
        print(f"{name:<16} {version or '-'}")
    print("\nok works   -- absent   XX broken   ?? here, but not verified by this project\n")
    for check in checks:
        print(f"{MARKS[check.status]} {check.name:<16} {check.detail}")
        if check.advice:
            print(f"   {'':<16} to do: {check.advice}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-doctor with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
