"""Which engine a command uses: the one named, else the demo engine, exported on first use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..manifest import MANIFEST_NAME
from . import _common as common

if TYPE_CHECKING:
    from ..runtime import Engine

LOCAL_DEMO = Path("engines/demo")


def cached_demo() -> Path:
    """$XDG_CACHE_HOME/fastocr-trt/demo-VERSION: a new version of this package makes a new engine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "fastocr-trt" / f"demo-{__version__}"


def find_engine(directory: Path | None) -> Path:
    """`directory`, else ./engines/demo, else the demo engine in the cache, which is made where it is not there yet.

    MissingDependencyError where it must be made and the extra `export` is absent.
    """
    if directory is not None:
        return directory
    for place in (LOCAL_DEMO, cached_demo()):
        if (place / MANIFEST_NAME).is_file():
            return place
    from .export import StageReporter

    export_engine = common.import_exporter()
    console = common.stderr_console()
    console.print(f"first use: exporting the demo model to {cached_demo()}", markup=False)
    with StageReporter(console) as progress:
        export_engine("demo", cached_demo(), progress=progress)
    return cached_demo()


def load_engine(directory: Path | None, provider: str = "cpu", threads: int | None = None) -> Engine:
    """The engine of `find_engine`, loaded."""
    from ..runtime import Engine

    return Engine.load(find_engine(directory), providers=(provider,), threads=threads)
