"""The decode loop: a token a step for every page of a batch, until each stops, loops or reaches its limit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .loop_guard import LoopGuard
from .sampling import Sampler, log_probability
from .session import Mode, Session

FinishReason = Literal["stop", "length", "loop"]


@dataclass
class PageState:
    """What is known of one page while it is written. token_ids excludes the stop token.

    log_probabilities: of each token, the model's own, where the session tells them (see `HostSession`), else empty.
    chosen: tokens that were chosen for it, with the stop token and what was cut off: one more than its decode steps.
    """

    limit: int
    token_ids: list[int] = field(default_factory=list)
    log_probabilities: list[float] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    guard: LoopGuard | None = None
    chosen: int = 0

    @property
    def active(self) -> bool:
        return self.finish_reason is None

    @property
    def mean_probability(self) -> float | None:
        """Geometric mean over token_ids; None where it is not known, or there are none."""
        kept = self.log_probabilities[: len(self.token_ids)]  # a guard may have cut the text since
        mean = math.exp(sum(kept) / len(kept)) if kept else math.nan
        return None if math.isnan(mean) else mean

    def accept(self, token: int, stop_token_ids: Sequence[int]) -> None:
        """Take the next token and decide whether the page goes on."""
        self.chosen += 1
        if token in stop_token_ids:
            self.finish_reason = "stop"
            return
        self.token_ids.append(token)
        if self.guard is not None and (first_turn := self.guard.push(token)) is not None:
            del self.token_ids[first_turn:]
            self.finish_reason = "loop"
        elif len(self.token_ids) >= self.limit:
            self.finish_reason = "length"


def decode(
    session: Session,
    pages: Sequence[PageState],
    stop_token_ids: Sequence[int],
    mode: Mode,
    sampler: Sampler,
    refresh_every: int = 0,
) -> Iterator[int]:
    """Advance `pages` from the state `prefill` left; yields the number of steps run so far after each token.

    refresh_every: in fast mode, every so many steps is a dense one, which also renews the fixation; 0 is never.
    A session that runs steps in groups is told only after a group which pages ended in it: they run on until then, and
    those tokens are dropped, so that the text is the same as step by step.
    """
    on_host = getattr(session, "logits_on_host", False)
    steps, tokens = 0, session.next_tokens()[None]
    while True:
        before = [page.active for page in pages]
        for row, chosen in enumerate(tokens):
            logits = session.logits() if on_host or not sampler.greedy else None
            if not sampler.greedy:
                chosen = sampler.sample(logits)
                session.choose(chosen)
            for b, (page, token) in enumerate(zip(pages, chosen.tolist(), strict=True)):
                if not page.active:
                    continue
                if on_host:
                    page.log_probabilities.append(log_probability(logits[b], token))
                page.accept(token, stop_token_ids)
            yield steps - len(tokens) + 1 + row
            now = [page.active for page in pages]
            if not any(now):
                return
        if now != before:
            session.set_active(np.array(now))
        largest = getattr(session, "group_size", 1) if sampler.greedy else 1  # a drawn token is fed to the next step
        room = min(page.limit - len(page.token_ids) for page in pages if page.active)
        group_mode, count = next_group(mode, steps, refresh_every, min(largest, room))
        steps += count
        if count > 1:
            tokens = session.steps(group_mode, count)
        else:
            session.step(group_mode)
            tokens = session.next_tokens()[None]


def next_group(mode: Mode, steps: int, refresh_every: int, largest: int) -> tuple[Mode, int]:
    """How the step after `steps` is run, and how many steps from it on, at most `largest`, are run alike."""
    if refresh_every > 0:
        until_refresh = refresh_every - 1 - steps % refresh_every
        if until_refresh == 0:
            return "dense", 1
        return mode, min(largest, until_refresh)
    return mode, largest
