"""The decode loop: a token a step for every page of a batch, until each stops, loops or reaches its limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .loop_guard import LoopGuard
from .sampling import Sampler
from .session import Mode, Session

FinishReason = Literal["stop", "length", "loop"]


@dataclass
class PageState:
    """What is known of one page while it is written. token_ids excludes the stop token."""

    limit: int
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    guard: LoopGuard | None = None

    @property
    def active(self) -> bool:
        return self.finish_reason is None

    def accept(self, token: int, stop_token_ids: Sequence[int]) -> None:
        """Take the next token and decide whether the page goes on."""
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
    """
    steps = 0
    while True:
        tokens = session.next_tokens()
        if not sampler.greedy:
            tokens = sampler.sample(session.logits())
            session.choose(tokens)
        before = [page.active for page in pages]
        for page, token in zip(pages, tokens.tolist(), strict=True):
            if page.active:
                page.accept(token, stop_token_ids)
        yield steps
        now = [page.active for page in pages]
        if not any(now):
            return
        if now != before:
            session.set_active(np.array(now))
        steps += 1
        refresh = refresh_every > 0 and steps % refresh_every == 0
        session.step("dense" if refresh else mode)
