"""TensorRT and TensorRT-RTX as builders: one Python API under two names, whose differences are looked up by name."""

from __future__ import annotations

import functools
import importlib
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..backends import MODULES, PACKAGES, PLUGIN_NAMESPACE, PLUGIN_VERSION, BackendName, installed_package
from ..errors import ExportError, FastOCRError, MissingDependencyError
from ..plugin_library import BUILD, load_plugin

OLDEST = {"tensorrt": (10, 3), "tensorrt-rtx": (1, 1)}  # IPluginV3OneBuildV2; several compute capabilities
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}
# Complaints of a machine without a GPU: building for another one goes on.
_NO_DRIVER = re.compile(r"cudaError 35|CUDA driver version is insufficient|CUDA initialization failure")


@dataclass(frozen=True)
class BuilderLibrary:
    """A backend's module, its version, and the logger that the whole process has for it."""

    name: BackendName
    trt: Any
    version: str
    logger: Any


def import_builder(name: BackendName) -> BuilderLibrary:
    """MissingDependencyError where the library is absent, does not load, or is too old, with what installs it."""
    try:
        trt = importlib.import_module(MODULES[name])
    except ModuleNotFoundError:
        raise MissingDependencyError(
            f"building for {name} needs the Python package {PACKAGES[name]}, which is not installed; "
            f"pip install {PACKAGES[name]}"
        ) from None
    except (ImportError, OSError) as error:
        raise MissingDependencyError(
            f"building for {name} needs {installed_package(name)}, whose import fails ({error}); "
            f"pip install --force-reinstall {installed_package(name)}"
        ) from None
    check_version(name, trt.__version__)
    return BuilderLibrary(name, trt, trt.__version__, _logger(trt))


def check_version(name: BackendName, version: str) -> None:
    """MissingDependencyError for a version before the oldest that has what is used."""
    parts = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if parts < OLDEST[name]:
        oldest = ".".join(map(str, OLDEST[name]))
        raise MissingDependencyError(
            f"{name} {version} is too old to build with; it must be at least {oldest}: "
            f"pip install --upgrade {installed_package(name)}"
        )


def capability_member(trt: ModuleType, capability: str) -> Any:
    """The library's name for a compute capability, `8.9`; ExportError lists those that it builds for."""
    members = trt.ComputeCapability.__members__
    member = members.get("SM" + capability.replace(".", ""))
    if member is None:
        known = [f"{name[2:-1]}.{name[-1]}" for name in members if re.fullmatch(r"SM\d+", name)]
        raise ExportError(
            f"{trt.__name__} {trt.__version__} does not build for compute capability {capability}; it builds for "
            f"{', '.join(known)}"
        )
    return member


def network_flags(trt: ModuleType) -> int:
    """Strong typing, where it is not the only kind of network: its bit differs between versions."""
    flags = getattr(trt, "NetworkDefinitionCreationFlag", None)
    strong = getattr(flags, "STRONGLY_TYPED", None)
    return 0 if strong is None else 1 << int(strong)


def load_plugin_for_building(library: BuilderLibrary, path: Path) -> str:
    """Load the plugin library where the parser finds it; gives its version.

    ExportError (EngineError of `load_plugin`) where it is no plugin library or has another version than this package.
    """
    if library.name == "tensorrt-rtx":
        from .rtx_library_name import provide_library_name

        provide_library_name()
    builder = library.trt.Builder(library.logger)  # while it lives, the registry speaks to its logger
    library.logger.clear()
    try:
        load_plugin(library.trt, path)
    except FastOCRError as error:
        reason = because(library.logger.errors) or f": {error}"
        raise ExportError(
            f"{library.name} {library.version} cannot load the plugin library {path}{reason}; {BUILD}, or give "
            "--plugin none"
        ) from None
    finally:
        del builder
    versions = plugin_versions(library.trt)
    if PLUGIN_VERSION not in versions:
        raise ExportError(
            f"{path} has version {', '.join(versions) or 'none'} of the fastocr plugin and this fastocr-trt needs "
            f"{PLUGIN_VERSION}; build the library of this version, or give --plugin none"
        )
    return PLUGIN_VERSION


def plugin_versions(trt: ModuleType) -> list[str]:
    """Versions of our DenseAttention in the registry."""
    creators = trt.get_plugin_registry().all_creators
    ours = [creator for creator in creators if getattr(creator, "plugin_namespace", None) == PLUGIN_NAMESPACE]
    return sorted({creator.plugin_version for creator in ours if creator.name == "DenseAttention"})


def because(messages: list[str], limit: int = 3) -> str:
    """The first errors that were logged, to end a sentence with, but for those that only say that no GPU is here."""
    told = dict.fromkeys(" ".join(text.split())[:400] for text in messages if not _NO_DRIVER.search(text))
    shown = list(told)[:limit]
    return f": {' | '.join(shown)}" if shown else ""


@functools.cache
def _logger(trt: ModuleType) -> Any:
    """One logger a process: the library keeps a pointer to the first it is given, for ever."""
    severity = trt.ILogger.Severity

    class Logger(trt.ILogger):
        """Keeps warnings and errors since `clear`."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.clear()

        def clear(self) -> None:
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, level: Any, message: str) -> None:
            if level in (severity.ERROR, severity.INTERNAL_ERROR):
                self.errors.append(message)
            elif level == severity.WARNING:
                self.warnings.append(message)

    return Logger()
