"""Run an engine directory: numpy and an engine library, never torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Engine, TextStream
    from .results import ParseResult, Timings

__all__ = ["Engine", "ParseResult", "TextStream", "Timings"]
_HOMES = {"Engine": "engine", "TextStream": "engine", "ParseResult": "results", "Timings": "results"}


def __getattr__(name: str):
    """Load a name on first use, so that `import fastocr_trt.runtime` costs little."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
