"""What kind of page comes next: small ones first, larger ones as the reader earns them."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from .data import Task

# visual tokens -> pages in a step; a step of each kind takes about the same time
_PAGES = {64: 16, 128: 10, 384: 4, 768: 2}
_PAGES_TO_SEE = {128: 24, 384: 8}

_LAYOUTS = (("column", 8), ("columns", 8), ("table", 4))  # two columns are hardest to find the way in
_LAYOUTS_OF_64 = (("column", 10), ("table", 4))  # two columns of four visual tokens hold a word each at best


class Stage(NamedTuple):
    """read, see: visual tokens -> weight, of steps that train all and of steps for the vision tower alone. promoted:
    an accuracy and what it must reach to lead to the next stage: "read N" of the next character on pages of N visual
    tokens, "under N" of the characters under a visual token."""

    read: dict[int, float]
    see: dict[int, float]
    promoted: tuple[str, float]


STAGES = (
    # Seeing a page costs a fifth of reading it, and small type is what takes longest to learn.
    Stage({64: 8, 128: 12}, {128: 25, 384: 55}, ("under 384", 0.86)),
    Stage({64: 20, 128: 35}, {128: 10, 384: 35}, ("read 128", 0.85)),
    Stage({64: 8, 128: 32, 384: 35}, {384: 20}, ("read 384", 0.78)),
    Stage({128: 15, 384: 40, 768: 33}, {384: 12}, ("read 768", 0.80)),
    Stage({128: 8, 384: 44, 768: 42}, {384: 6}, ("read 768", 2.0)),
)


def task(stage: int, seed: int, step: int) -> Task:
    """The task of a step, the same on every process."""
    source = Random(f"task {seed} {step}")
    kinds = [(size, True) for size in STAGES[stage].read] + [(size, False) for size in STAGES[stage].see]
    weights = [*STAGES[stage].read.values(), *STAGES[stage].see.values()]
    size, reading = source.choices(kinds, weights)[0]
    names, shares = zip(*(_LAYOUTS_OF_64 if size == 64 else _LAYOUTS), strict=True)
    layout = source.choices(names, shares)[0]
    return Task(size, layout, _PAGES[size] if reading else _PAGES_TO_SEE[size], reading)


class Progress:
    """The stage, and running averages of accuracy by what was asked."""

    def __init__(self, stage: int = 0):
        self.stage = stage
        self.averages: dict[str, float] = {}
        self.steps_in_stage = 0

    def note(self, key: str, value: float, share: float = 0.05) -> None:
        self.averages[key] = self.averages.get(key, value) * (1 - share) + value * share

    def promote(self) -> bool:
        """Call after every step. True when a new stage has begun."""
        self.steps_in_stage += 1
        key, accuracy = STAGES[self.stage].promoted
        earned = self.averages.get(key, 0.0) > accuracy
        if self.stage + 1 == len(STAGES) or self.steps_in_stage < 60 or not earned:
            return False
        self.stage += 1
        self.steps_in_stage = 0
        return True

    def state_dict(self) -> dict:
        return dict(vars(self))

    def load_state_dict(self, state: dict) -> None:
        vars(self).update(state)
