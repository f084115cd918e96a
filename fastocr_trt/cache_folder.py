"""Where this package keeps what it can make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/fastocr-trt, else ~/.cache/fastocr-trt. It need not be there, nor writable."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 (raises where no home is)
    return Path(cache) / "fastocr-trt"
