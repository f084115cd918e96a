"""fastocr-doctor: what is installed, what works here, why not, and what to do."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .. import __version__
from ..backends import (
    BACKENDS,
    MODULES,
    PACKAGES,
    BackendName,
    BackendRecord,
    Installed,
    installed_package,
    mismatches,
)
from ..counts import plural
from ..errors import FastOCRError, MissingDependencyError
from ..gpus import compute_capabilities, gpu_names
from ..manifest import Manifest
from ..plugin_library import BUILD, find_plugin
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
OPTIONAL = ("rapidfuzz", "onnxruntime-gpu", "cuda-python")

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
        gpu = gpu_names()
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


def check_library(backend: BackendName) -> Check:
    """TensorRT or TensorRT-RTX: whether it is here and loads. Running its engines is not verified by us."""
    try:
        version = library_version(backend)
    except Exception as error:
        advice = f"pip install --force-reinstall {installed_package(backend)}"
        return Check(backend, "broken", f"import fails: {error}", advice)
    if version is None:
        return Check(backend, "absent", f"not installed; it is pip's {PACKAGES[backend]}")
    return Check(backend, "unverified", f"version {version}; builds engines with fastocr-export --backend {backend}")


def check_plugin() -> Check:
    """The plugin library: where it is, and its version as each library that is here sees it."""
    name = "plugin library"
    try:
        path = find_plugin()
    except MissingDependencyError:
        return Check(name, "absent", "not installed and not built; engines built without it need none", BUILD)
    seen = {backend: plugin_version(backend) for backend in BACKENDS if _version_or_none(backend)}
    if not seen:
        return Check(name, "unverified", f"{path}; it loads into TensorRT or TensorRT-RTX, and neither is here")
    refused = [backend for backend, version in seen.items() if version is None]
    if refused:
        return Check(name, "broken", f"{path} does not load into {', '.join(refused)}", BUILD)
    versions = ", ".join(f"version {version} in {backend}" for backend, version in seen.items())
    return Check(name, "unverified", f"{path}; {versions}")


def library_version(backend: BackendName) -> str | None:
    """The version of a backend's library, None where it is not installed. Raises what its import raises otherwise."""
    try:
        return importlib.import_module(MODULES[backend]).__version__
    except ModuleNotFoundError as error:
        if error.name == MODULES[backend]:
            return None
        raise


def plugin_version(backend: BackendName) -> str | None:
    """The version of the plugin that the library of `backend` loads here; None where there is none."""
    try:
        from ..export.build_library import import_builder, load_plugin_for_building

        return load_plugin_for_building(import_builder(backend), find_plugin())
    except (FastOCRError, ImportError):
        return None


def _version_or_none(backend: BackendName) -> str | None:
    try:
        return library_version(backend)
    except Exception:
        return None


def check_gpu() -> Check:
    gpu = gpu_names()
    if gpu is None:
        return Check("nvidia gpu", "absent", "nvidia-smi finds none")
    return Check("nvidia gpu", "works", f"{gpu}; compute capability {', '.join(compute_capabilities()) or 'unknown'}")


def check_engines(directory: Path, verify: bool) -> list[Check]:
    """What is built for TensorRT and TensorRT-RTX in an engine directory, and why it does not fit this machine."""
    try:
        manifest = Manifest.read(directory)
    except FastOCRError:
        return []  # told by check_engine
    checks = []
    for name, data in manifest.backends.items():
        checks += _check_backend(directory, name, data, verify)
    return checks


def _check_backend(directory: Path, name: str, data: object, verify: bool) -> list[Check]:
    """One line where all fits, else one for each reason why not."""
    title = f"engines {name}"
    if name not in BACKENDS:
        return [Check(title, "broken", f"a backend that fastocr-trt {__version__} does not know")]
    try:
        record = BackendRecord.from_dict(name, data)
        record.check_files(name, directory, hash_up_to=None if verify else 0)
    except FastOCRError as error:
        return [Check(title, "broken", str(error))]
    plugin = plugin_version(name) if record.plugin_version and _version_or_none(name) else None
    installed = Installed(_version_or_none(name), compute_capabilities(), plugin)
    wrong = mismatches(record, name, installed, directory)
    if wrong:
        return [Check(title, "broken", sentence) for sentence in wrong]
    built = (
        f"{', '.join(record.engines)}, built with {record.version} for compute capability "
        f"{', '.join(record.compute_capabilities)}{', with the plugin' if record.plugin_version else ''}"
    )
    reason = "" if installed.compute_capabilities else "; no GPU is seen to run them on"
    return [Check(title, "unverified", f"{built}; {'hashes' if verify else 'sizes'} match{reason}")]


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
        f"up to {room.max_visual_tokens:,} visual and {plural(room.max_text_tokens, 'text token')}, "
        f"batch of {room.max_batch}, exported by fastocr-trt {manifest.fastocr_version}"
    )
    policy = f"focal layers {', '.join(map(str, manifest.policy.focal_layers))}"
    detail += f"; {policy} ({(manifest.calibration or {}).get('status', 'origin unknown')})"
    seen = "hashes match and it loads" if verify else "sizes match; --verify checks hashes and loads it"
    return Check(name, "works", f"{detail}; {seen}")


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
        lambda: check_library("tensorrt"),
        lambda: check_library("tensorrt-rtx"),
        check_plugin,
        check_gpu,
    ]
    checks = [probe() for probe in probes]
    if options.engine is not None:
        checks += [check_engine(options.engine, options.verify), *check_engines(options.engine, options.verify)]
    packages = versions((*RUNTIME, *EXPORT, *OPTIONAL, *map(installed_package, BACKENDS)))
    system = {"fastocr-trt": __version__, "python": platform.python_version(), "system": platform.platform()}
    if options.json:
        report = {"system": system, "packages": packages, "checks": [asdict(check) for check in checks]}
        print(json.dumps(report, indent=2))
    else:
        _print_report(system, packages, checks)
    # What must work is what this machine was asked for: the CPU, and the engine that was named. Engines of TensorRT
    # that do not fit leave the rest of the directory usable.
    broken = [check.name for check in checks if check.status == "broken"]
    if any(name.startswith(("onnxruntime cpu", "engine ")) for name in broken):
        return common.EXIT_MISTAKE
    return common.EXIT_PARTIAL if any(name.startswith("engines ") for name in broken) else common.EXIT_OK


def _print_report(system: dict[str, str], packages: dict[str, str | None], checks: list[Check]) -> None:
    for name, value in system.items():
        print(f"{name:<16} {value}")
    print()
    width = max(map(len, packages), default=0)
    for name, version in packages.items():
        print(f"{name:<{width}} {version or '-'}")
    print("\nok works   -- absent   XX broken   ?? here, but not verified by this project\n")
    for check in checks:
        print(f"{MARKS[check.status]} {check.name:<16} {common.printable(check.detail)}")
        if check.advice:
            print(f"   {'':<16} to do: {common.printable(check.advice)}")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run fastocr-doctor with `argv` (default: the process's); its exit code."""
    return common.run(_parser(), _command, argv)
