"""How fast the machine itself is while a run goes on: other work on it must not pass for a change of the engine."""

from __future__ import annotations

import time

import numpy as np

from .measure import Measured

YARDSTICK = ("yardstick", "a fixed computation")
"""Its name among the variants of a run."""


class Yardstick:
    """The same computation in every run, on one core and without an engine: exponentials, and a sum over 64 MiB, which
    no cache of a core holds."""

    def __init__(self) -> None:
        self._numbers = np.linspace(-1, 1, 1 << 20, dtype=np.float32)
        self._rows = np.ones(1 << 24, np.float32)

    def __call__(self) -> Measured:
        start = time.perf_counter()
        np.exp(self._numbers)
        self._rows.sum()
        return {"yardstick_ms": 1e3 * (time.perf_counter() - start)}
