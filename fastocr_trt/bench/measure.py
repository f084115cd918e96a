"""Measure variants in turns, so that a machine which slows down for a while slows all of them alike."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

Measured = Mapping[str, float]
"""What one turn gave: quantity -> value."""
ENOUGH_ROUNDS = 7
"""With fewer rounds on either side nothing is called a change: at 5, noise alone is `apart` in one comparison of
twenty, at 7 in one of a hundred and forty."""


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

    @classmethod
    def of_ratios(cls, over: Sequence[float], under: Sequence[float]) -> Spread | None:
        """Of each round's ratio: what slowed a whole round down is in both and cancels. None where no round has both;
        a round that was stopped may have one alone."""
        ratios = [a / b for a, b in zip(over, under, strict=False)]
        return cls.of(ratios) if ratios else None

    def apart(self, other: Spread) -> int:
        """1 or -1 where this median lies above or below `other`'s by more than both interquartile ranges together,
        else 0."""
        difference, noise = self.median - other.median, (self.high - self.low) + (other.high - other.low)
        return (difference > noise) - (difference < -noise)

    def times(self, factor: float) -> Spread:
        return Spread(factor * self.median, factor * self.low, factor * self.high, self.count)


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
        values = self._values(name, quantity)
        return Spread.of(values) if values else None

    def ratio(self, over: Hashable, under: Hashable, quantity: str) -> Spread | None:
        """`over`'s quantity over `under`'s, round by round; None where no round has both."""
        return Spread.of_ratios(self._values(over, quantity), self._values(under, quantity))

    def _values(self, name: Hashable, quantity: str) -> list[float]:
        return self.samples.get(name, {}).get(quantity, [])
