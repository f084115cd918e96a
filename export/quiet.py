"""Silence what torch, onnxscript and onnx_ir report to their own developers while they trace."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGERS = (
    "torch",
    "torch.onnx",
    "torch.onnx._internal.exporter._registration",
    "onnxscript",
    "onnx_ir",
    "transformers",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Within the block, warnings are not shown and those libraries log errors alone."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
