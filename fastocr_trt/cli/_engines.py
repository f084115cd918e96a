"""Which engine a command uses: the one named, else the demo engine, exported on first use."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__, option_types
from ..backends import BACKENDS
from ..cache_folder import cache_folder
from ..errors import FastOCRError
from ..manifest import MANIFEST_NAME
from . import _common as common

if TYPE_CHECKING:
    from ..runtime import Engine

LOCAL_DEMO = Path("engines/demo")


def cached_demo() -> Path:
    """$XDG_CACHE_HOME/fastocr-trt/demo-VERSION: a new version of this package makes a new engine."""
    return cache_folder() / f"demo-{__version__}"


def _check_home() -> None:
    """FastOCRError where the demo engine would go into a home folder that is absent or takes nothing."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111
    place = home / ".cache" if (home / ".cache").exists() else home
    if not os.environ.get("XDG_CACHE_HOME") and not (place.is_dir() and os.access(place, os.W_OK)):
        raise FastOCRError(
            f"the home folder {home}, where the demo engine would be kept, is absent or not writable; set "
            "XDG_CACHE_HOME to a folder, or run `fastocr-export demo -o engines/demo` and stay in this folder"
        )


def find_engine(directory: Path | None, quiet: bool = False) -> Path:
    """`directory`, else ./engines/demo, else the demo engine in the cache, which is made where it is not there yet.

    That the demo reads is said on stderr, unless `quiet`.
    MissingDependencyError where it must be made and the extra `export` is absent, FastOCRError where it has no place.
    """
    if directory is not None:
        return directory
    demo = next((place for place in (LOCAL_DEMO, cached_demo()) if (place / MANIFEST_NAME).is_file()), None)
    if demo is None:
        demo = _export_demo()
    if not quiet:
        common.note("no --engine: the demo reader reads, which knows one font on small pages; real pages need a model")
    return demo


def _export_demo() -> Path:
    """The demo engine, made in the cache."""
    from .export import StageReporter

    _check_home()
    export_engine = common.import_exporter()
    console = common.stderr_console()
    console.print(f"first use: exporting the demo model to {cached_demo()}", markup=False)
    with StageReporter(console) as progress:
        export_engine("demo", cached_demo(), progress=progress)
    return cached_demo()


def add_machine_options(parser: argparse._ActionsContainer) -> None:
    """--backend, --provider and --threads: what runs the engine."""
    parser.add_argument("--threads", type=option_types.threads, metavar="N", help="on the CPU (default: all cores)")
    parser.add_argument(
        "--backend",
        choices=("auto", "onnxruntime", *BACKENDS),
        default="auto",
        help="auto: compiled engines where the directory has some that fit this machine, else ONNX Runtime",
    )
    parser.add_argument("--provider", choices=("cpu", "cuda"), help="of ONNX Runtime, which it implies (default: cpu)")


def check_machine_options(backend: str, provider: str | None, trace: bool = False) -> str:
    """The backend that the options mean together; FastOCRError where they do not go together, or not with a trace."""
    if provider is not None and backend in BACKENDS:
        raise FastOCRError(
            f"--provider {provider} is ONNX Runtime's, and --backend is {backend}; leave one of them out"
        )
    if trace and (backend in BACKENDS or provider == "cuda"):
        named = f"--backend {backend}" if backend in BACKENDS else "--provider cuda"
        raise FastOCRError(f"--trace records on ONNX Runtime's CPU provider alone; leave {named} out")
    return "onnxruntime" if provider is not None else backend


def check_provider(provider: str | None) -> None:
    """EngineError where ONNX Runtime has no such provider here. Whether it computes an engine's dtype is told later."""
    if provider is not None:
        from ..runtime.onnxruntime_session import choose_provider

        choose_provider((provider,), "fp32")


def load_engine(
    directory: Path | None,
    provider: str | None = None,
    threads: int | None = None,
    backend: str = "auto",
    trace: bool = False,
) -> Engine:
    """The engine of `find_engine`, loaded; options as `add_machine_options` has them, trace as in `Engine.load`."""
    from ..runtime import Engine

    backend = check_machine_options(backend, provider)
    return Engine.load(
        find_engine(directory), providers=(provider or "cpu",), threads=threads, backend=backend, trace=trace
    )
