"""Which library runs an engine directory here, and the session on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..backends import BACKENDS, PLUGIN_VERSION, BackendName, BackendRecord
from ..errors import EngineError, FastOCRError
from ..manifest import Manifest, sha256

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

    record = _record(directory, manifest, backend)
    library = import_library(backend)
    build = _build(directory, backend)
    here = str(library.trt.__version__)
    if here.split(".")[0] != record.version.split(".")[0]:
        raise EngineError(
            f"the engines of {backend} in {directory} were built by version {record.version}, and {here} is installed; "
            f"{build}, or install {record.version}"
        )
    if record.plugin_version not in (None, PLUGIN_VERSION):
        raise EngineError(
            f"the engines of {backend} in {directory} need version {record.plugin_version} of the plugin, and this "
            f"fastocr-trt has {PLUGIN_VERSION}; {build}"
        )
    capability = compute_capability(library.cudart)
    if capability not in record.compute_capabilities:
        raise EngineError(
            f"the engines of {backend} in {directory} are for compute capability "
            f"{', '.join(record.compute_capabilities)}, and this GPU has {capability}; "
            f"{build} --compute-capability {capability}"
        )
    return library


def open_tensorrt(directory: Path, manifest: Manifest, backend: str, hash_up_to: int | None) -> Session:
    """A session on the directory's engines of `backend`; FastOCRError where they are damaged or do not fit.

    hash_up_to: as in `Manifest.check_files`.
    """
    from .tensorrt_session import TensorRTSession

    library = fitting_library(directory, manifest, backend)
    _check_files(directory, backend, _record(directory, manifest, backend), hash_up_to)
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


def _record(directory: Path, manifest: Manifest, backend: BackendName) -> BackendRecord:
    if backend not in manifest.backends:
        raise EngineError(f"{directory} has no engines of {backend}; {_build(directory, backend)}")
    return BackendRecord.from_dict(backend, manifest.backends[backend])


def _check_files(directory: Path, backend: str, record: BackendRecord, hash_up_to: int | None) -> None:
    build = _build(directory, backend)
    for file in record.engines.values():
        path = directory / file.file
        if Path(file.file).is_absolute() or ".." in Path(file.file).parts:
            raise EngineError(
                f"the manifest of {directory} names the engine {file.file}, outside the directory; {build}"
            )
        if not path.is_file():
            raise EngineError(f"{directory} lacks {file.file}; {build}")
        size = path.stat().st_size
        if size != file.size:
            raise EngineError(f"{path} is {size:,} bytes and the manifest says {file.size:,}: changed; {build}")
        if (hash_up_to is None or size <= hash_up_to) and sha256(path) != file.sha256:
            raise EngineError(f"{path} does not match the hash in the manifest: it was changed; {build}")


def _build(directory: Path, backend: str) -> str:
    return f"build them with `fastocr-export {directory} --backend {backend}`"
