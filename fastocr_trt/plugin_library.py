"""The plugin library: where it lies, and its one load into a process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from .errors import EngineError, MissingDependencyError

LIBRARY_NAME = "libfastocr_plugin.so"
BUILD = (
    "build it in a checkout of fastocr-trt with `cmake -S . -B build -DFASTOCR_BUILD_TESTS=OFF && cmake --build build "
    "--parallel`"
)
_loaded: dict[str, Path] = {}  # by TensorRT module: its registry refuses a library whose plugins it has
_lock = threading.Lock()


def find_plugin(path: str | Path | None = None) -> Path:
    """The plugin library: `path` where one is given, else the installed package's, else that of a checkout's build.

    MissingDependencyError where there is none, with the commands that make one.
    """
    if path is not None:
        if not Path(path).is_file():
            raise MissingDependencyError(f"there is no plugin library at {path}; {BUILD}, or leave the path out")
        return Path(path).resolve()
    package = Path(__file__).resolve().parent
    build = package.parent / "build"
    places = [package / "lib" / LIBRARY_NAME]
    places += [build / part / "plugins" / LIBRARY_NAME for part in ("", "plugin_cuda")]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise MissingDependencyError(f"the plugin library {LIBRARY_NAME} is not installed and not built; {BUILD}")
    return found


def load_plugin(trt: Any, path: str | Path | None = None) -> Path:
    """Load the library into the plugin registry of `trt`, the module tensorrt or tensorrt_rtx; gives its path.

    A process loads it once: later calls give the path of the first. EngineError where TensorRT refuses it.
    """
    with _lock:
        if trt.__name__ not in _loaded:
            library = find_plugin(path)
            try:
                handle = trt.get_plugin_registry().load_library(str(library))
            except RuntimeError as error:
                raise EngineError(f"{trt.__name__} {trt.__version__} cannot load {library}: {error}; {BUILD}") from None
            if handle is None:
                raise EngineError(
                    f"{trt.__name__} {trt.__version__} refuses {library}: it was built for another version, or "
                    f"something else registered its plugins before; {BUILD}"
                )
            _loaded[trt.__name__] = library
        return _loaded[trt.__name__]
