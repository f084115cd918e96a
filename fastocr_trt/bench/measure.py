"""Measure variants in turns, so that a machine which slows down for a while slows all of them alike."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

Measured = Mapping[str, float]
"""What one turn gave: quantity -> value."""


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of what was measured; of one value all three are that value."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))


class Turns:
    """Runs variants in rounds; `samples` holds what was measured so far, also after Ctrl-C.

    A variant returns its quantities itself, so that it may set up outside the clock. Every round has an order of its
    own: none always runs on the caches that the same other one left.
    """

    def __init__(self, variants: Mapping[Hashable, Callable[[], Measured]]) -> None:
        self._variants = variants
        self.samples: dict[Hashable, dict[str, list[float]]] = {name: {} for name in variants}

    def run(self, rounds: int, warmup: int, advance: Callable[[Hashable], None] = lambda name: None) -> None:
        """advance(name): called before each turn."""
        order, source = list(self._variants), random.Random(0)
        for number in range(warmup + rounds):
            source.shuffle(order)
            for name in order:
                advance(name)
                measured = self._variants[name]()
                if number >= warmup:
                    for quantity, value in measured.items():
                        self.samples[name].setdefault(quantity, []).append(value)

    def spread(self, name: Hashable, quantity: str) -> Spread | None:
        """None where nothing was measured."""
        values = self.samples.get(name, {}).get(quantity)
        return Spread.of(values) if values else None
