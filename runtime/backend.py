"""Which library runs an engine directory here, and the session on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import BACKENDS, PLUGIN_VERSION, BackendName, BackendRecord, Installed, mismatches, rebuild_command
from ..errors import EngineError, FastOCRError, MissingDependencyError
from ..manifest import Manifest
from ..plugin_library import find_plugin

if TYPE_CHECKING:
    from .session import Session
    from .tensorrt_library import Library

BACKEND_CHOICES = ("auto", "onnxruntime", *BACKENDS)
log = logging.getLogger("fastocr_trt")


def choose_backend(directory: Path, manifest: Manifest, backend: str) -> str:
    """`onnxruntime`, or the compiled backend to use; `auto` takes a compiled one where its engines fit this machine.

    EngineError for an unknown name. Whether a backend that was asked for fits is told when it is opened.
    """
    if backend not in BACKEND_CHOICES:
        raise EngineError(f"backend is {backend!r}; choose one of {list(BACKEND_CHOICES)}")
    if backend != "auto":
        return backend
    for name in BACKENDS:
        if name in manifest.backends:
            try:
                fitting_library(directory, manifest, name)
            except FastOCRError as error:
                log.info("the engines of %s are passed over: %s", name, error)
            else:
                return name
    return "onnxruntime"


def fitting_library(directory: Path, manifest: Manifest, backend: BackendName) -> Library:
    """The library of `backend`; FastOCRError says why the directory's engines cannot run in it on this machine."""
    from .tensorrt_library import compute_capability, import_library

    if backend not in manifest.backends:
        command = rebuild_command(directory, backend)
        raise EngineError(f"{directory} has no engines of {backend}; build them with `{command}`")
    record = BackendRecord.from_dict(backend, manifest.backends[backend])
    library = import_library(backend)
    here = Installed(str(library.trt.__version__), (compute_capability(library.cudart),), _plugin_version())
    if found := mismatches(record, backend, here, directory):
        raise EngineError(found[0])
    return library


def open_tensorrt(directory: Path, manifest: Manifest, backend: str, hash_up_to: int | None) -> Session:
    """A session on the directory's engines of `backend`; FastOCRError where they are damaged or do not fit.

    hash_up_to: as in `Manifest.check_files`.
    """
    from .tensorrt_session import TensorRTSession

    library = fitting_library(directory, manifest, backend)
    manifest.check_files(directory, hash_up_to, backend)
    return TensorRTSession(directory, manifest, library)


def open_onnxruntime(
    directory: Path, manifest: Manifest, providers: Sequence[str], threads: int | None, share_weights: bool | None
) -> Session:
    """A session on the directory's ONNX graphs, all of them loaded."""
    from .onnxruntime_session import OnnxRuntimeSession, choose_provider

    provider = choose_provider(providers, manifest.dtype)
    session = OnnxRuntimeSession(directory, manifest, provider, threads, share_weights)
    for graph in ("vision", "dense", "fast"):
        session.graph(graph)
    return session


def _plugin_version() -> str | None:
    try:
        find_plugin()
    except MissingDependencyError:
        return None
    return PLUGIN_VERSION
