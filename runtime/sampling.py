"""The next token from logits: greedy, or drawn with a temperature and top-p."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..counts import check_count
from ..errors import EngineError, FastOCRError

_HEAD = 256  # candidates looked at before the whole vocabulary is sorted


class Sampler:
    """Chooses a token for each page of a batch; each page draws by itself, whatever else is in the batch.

    temperature 0 is greedy; top_p draws from the fewest likeliest tokens whose mass reaches it. The same seed, page
    and logits give the same text. first_page: number of the batch's first page in the job, so that a page's draws
    do not depend on how pages are batched. Raises FastOCRError for values out of range.
    """

    def __init__(self, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0, first_page: int = 0):
        if not _is_number(temperature) or not 0 <= temperature < math.inf:
            raise FastOCRError(f"temperature is {temperature!r}; it must be a number of at least 0 (0 is greedy)")
        if not _is_number(top_p) or not 0 < top_p <= 1:
            raise FastOCRError(f"top_p is {top_p!r}; it must be above 0 and at most 1 (1 keeps every token)")
        seed = check_count(seed, "seed", least=0)
        self.greedy = temperature == 0
        self._temperature, self._top_p, self._seed, self._first_page = temperature, top_p, seed, first_page
        self._generators: list[np.random.Generator] = []

    def sample(self, logits: NDArray[np.floating]) -> NDArray[np.int64]:
        """logits [B,vocab_size], the same B at each call, to token ids [B] int64; a greedy tie goes to the lower id.

        Raises EngineError where a page's logits are not numbers.
        """
        bad = np.isnan(logits).any(1) | ~np.isfinite(logits.max(1))  # -inf rules a token out, and may not rule out all
        if bad.any():
            raise EngineError(
                f"the model gave logits that are not numbers for page {int(bad.argmax()) + 1} of the batch: "
                "export the engine with --dtype fp32 or bf16"
            )
        if self.greedy:
            return logits.argmax(1).astype(np.int64)
        if not self._generators:
            self._generators = [np.random.default_rng((self._seed, self._first_page + b)) for b in range(len(logits))]
        return np.array([self._draw(*pair) for pair in zip(self._generators, logits, strict=True)], np.int64)

    def _draw(self, generator: np.random.Generator, logits: NDArray[np.floating]) -> int:
        scaled = logits.astype(np.float64)
        with np.errstate(over="ignore"):  # a temperature near 0 is all but greedy
            weights = np.exp((scaled - scaled.max()) / self._temperature)
        weights /= weights.sum()
        ids = _nucleus(weights, self._top_p) if self._top_p < 1 else None
        cumulative = np.cumsum(weights if ids is None else weights[ids])
        drawn, last = np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"), cumulative[-1]
        place = min(int(drawn), int(np.searchsorted(cumulative, last)))  # rounding may draw the total itself
        return place if ids is None else int(ids[place])


def log_probability(logits: NDArray[np.floating], token: int) -> float:
    """Natural logarithm of `token`'s share in the softmax of logits [vocab_size]; NaN where they are not numbers."""
    with np.errstate(invalid="ignore"):
        above = logits - logits.max()
        return float(above[token] - np.log(np.exp(above).sum()))


def _nucleus(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Ids of the fewest likeliest tokens with a mass of at least top_p, likeliest first, ties by lower id."""
    candidates = np.arange(len(weights))
    if len(weights) > _HEAD:
        head = np.argpartition(weights, -_HEAD)[-_HEAD:]
        if weights[head].sum() >= top_p:
            candidates = np.flatnonzero(weights >= weights[head].min())  # every tie of the last
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), top_p - 1e-12)) + 1
    return order[:count]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
