"""Time spent in each part of reading a batch."""

from __future__ import annotations

import time

from .results import Timings


class Stopwatch:
    """`mark(part)` adds the time since the last mark to `part`."""

    def __init__(self) -> None:
        self._spent: dict[str, float] = {}
        self._last = 0.0

    def start(self) -> None:
        self._last = time.perf_counter()

    def mark(self, part: str) -> None:
        now = time.perf_counter()
        self._spent[part] = self._spent.get(part, 0.0) + now - self._last
        self._last = now

    def timings(self, decode_steps: int) -> Timings:
        spent = self._spent
        first = sum(spent.get(part, 0.0) for part in ("preprocess", "vision", "prefill"))
        decode = spent.get("decode", 0.0)
        return Timings(
            preprocess=spent.get("preprocess", 0.0),
            vision=spent.get("vision", 0.0),
            prefill=spent.get("prefill", 0.0),
            first_token=first,
            decode=decode,
            total=first + decode,
            decode_steps=decode_steps,
        )
