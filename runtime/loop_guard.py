"""Notices a decoder that repeats itself for ever, and tells where the first turn of the loop ends.

A loop is an exact cycle of tokens. How many turns make one depends on what is repeated, since pages repeat too:
- a turn of SEVERAL WORDS (a sentence, a line of text): `word_turns` turns, or where a turn is long as many as make
  `word_tokens` tokens, but never below `least_turns` (a sheet of equal labels is a page, too);
- ANYTHING ELSE (rules, dotted leaders, zeros, blank lines, empty rows, cells such as N/A): pages are full of it, so
  `filler_turns` turns AND `filler_tokens` tokens: more lines than a page has, and longer than any line.

A false alarm loses text and a late one only time, so the thresholds are patient.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ..counts import check_count

_WORD = re.compile(r"[^\W\d_]{2,}")


@dataclass(frozen=True)
class LoopThresholds:
    """What counts as a loop; see the module. Raises FastOCRError for values below 1 (2 for turns).

    max_period: longest turn that is noticed, in tokens. different_words: words of at least two letters that a turn
    needs to count as text.
    """

    max_period: int = 1024
    different_words: int = 4
    word_turns: int = 16
    word_tokens: int = 512
    least_turns: int = 6
    filler_turns: int = 64
    filler_tokens: int = 512

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            check_count(getattr(self, name), name, least=2 if name.endswith("_turns") else 1)

    def word_run(self, period: np.ndarray) -> np.ndarray:
        """Tokens, all turns together, at which a cycle of `period` tokens of several words is a loop."""
        turns = np.clip(-(-self.word_tokens // period), min(self.least_turns, self.word_turns), self.word_turns)
        return turns * period

    def filler_run(self, period: int) -> int:
        """As word_run, for any other cycle."""
        return max(self.filler_turns * period, self.filler_tokens)


class LoopGuard:
    """Watches the tokens of one page. A token costs a few microseconds, however many have gone before.

    decode: ids to text, to tell words from filler; without it, a turn of more than `different_words` different
    tokens counts as words.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str] | None = None, thresholds: LoopThresholds = LoopThresholds()
    ):
        self._decode, self._thresholds = decode, thresholds
        longest = thresholds.max_period
        self._periods = np.arange(longest, 0, -1, dtype=np.int32)  # in the order of the history: the oldest token first
        self._history = np.full(longest * 4, -1, np.int32)  # ids are never below 0
        self._end = longest
        self._count = 0
        self._matches = np.zeros(longest, np.int32)  # how long each period has held, less its first turn
        self._first_check = (thresholds.word_run(self._periods) - self._periods).astype(np.int32)
        self._check = self._first_check.copy()
        self._postponed = False  # whether _check differs from _first_check anywhere

    def push(self, token_id: int) -> int | None:
        """None, or how many of the tokens pushed so far to keep: up to the end of the loop's first turn."""
        match = self._history[self._end - len(self._periods) : self._end] == token_id
        self._append(token_id)
        self._matches += 1
        self._matches *= match
        due = self._matches >= self._check
        while due.any():
            place = int(np.flatnonzero(due)[-1])  # the shortest period: its multiples hold too
            period, run = int(self._periods[place]), int(self._matches[place] + self._periods[place])
            needed = self._needed(period)
            if run >= needed:
                return self._count - run + period
            self._check[place], due[place] = needed - period, False
            self._postponed = True
        if self._postponed:
            np.copyto(self._check, self._first_check, where=~match)
            self._postponed = bool((self._check != self._first_check).any())
        return None

    def _needed(self, period: int) -> int:
        turn = self._history[self._end - period : self._end].tolist()
        different = len(set(turn)) - 1 if self._decode is None else _different_words(self._decode(turn * 3))
        if different >= self._thresholds.different_words:
            return int(self._thresholds.word_run(np.int64(period)))
        return self._thresholds.filler_run(period)

    def _append(self, token_id: int) -> None:
        if self._end == len(self._history):
            longest = len(self._periods)
            self._history[:longest] = self._history[-longest:]
            self._end = longest
        self._history[self._end] = token_id
        self._end += 1
        self._count += 1


def _different_words(three_turns: str) -> int:
    """Of a turn three times over: it may start within a word, so what touches either end is half a word."""
    inner = [m for m in _WORD.finditer(three_turns) if m.start() > 0 and m.end() < len(three_turns)]
    return len({m.group() for m in inner})
