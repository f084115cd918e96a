"""Notices by the gaze that a page is no longer being read: nothing new is looked at, and the text repeats itself.

The loop guard sees exact repeats of text. A decoder that goes round with a letter changed at every turn escapes it, but
not the gaze: where text is read, a new place is looked at every few tokens. Either sign alone is too weak (a long
answer about one place; a sheet of equal labels), so both are asked for. Works only where a trace is recorded.
"""

from __future__ import annotations

import numpy as np

STRETCH = 192
"""Tokens that are looked back upon. On pages that the demo reads well a new place comes at least every 50."""

_FEW_NEW = 3  # new places in the stretch at most: a gaze that wanders hits one by chance
_GRAM = 4  # tokens
_REPEATED = 0.5  # share of the stretch's grams that the page had before
_LIVELY = 16  # before the stretch, tokens per new place at most: a gaze that hardly moves tells nothing
_LEAST_PLACES = 12


class GazeGuard:
    """Watches one page. stretch: how patient it is, in tokens; a place is a visual token."""

    def __init__(self, stretch: int = STRETCH) -> None:
        self._stretch = stretch
        self._usual: np.ndarray | None = None
        self._seen: set[int] = set()
        self._tokens: list[int] = []
        self._grams: set[tuple[int, ...]] = set()
        self._repeats: list[bool] = []
        self._found: list[int] = []  # how many tokens there were at each new place

    def push(self, token_id: int, mass: np.ndarray) -> int | None:
        """mass [F,KV,V]: the attention that gave the token.

        None, or how many of the page's tokens to keep: up to the end of the loop's first turn.
        """
        self._tokens.append(token_id)
        gram = tuple(self._tokens[-_GRAM:])
        self._repeats.append(gram in self._grams)
        self._grams.add(gram)
        count = len(self._tokens)
        if (place := self._place(mass)) not in self._seen:
            self._seen.add(place)
            self._found.append(count)
        start = count - self._stretch
        if start < 0 or sum(found > start for found in self._found[-_FEW_NEW - 1 :]) > _FEW_NEW:
            return None
        before = [found for found in self._found if found <= start]
        if len(before) < max(_LEAST_PLACES, start / _LIVELY) or np.mean(self._repeats[start:]) < _REPEATED:
            return None
        kept = before[-1]
        while not self._repeats[kept]:  # what was read last, and the loop's first turn
            kept += 1
        return kept

    def _place(self, mass: np.ndarray) -> int:
        """The visual token that stands out most from what each head usually looks at."""
        self._usual = mass.copy() if self._usual is None else self._usual
        above = np.maximum(mass - self._usual, 0).sum((0, 1))
        self._usual += (mass - self._usual) / (len(self._tokens) + 1)
        return int(above.argmax())
