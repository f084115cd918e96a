"""Feed the prompts of a batch in chunks of one kind, in prompt order, up to each one's last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .prompt import PromptTokens
from .session import Session


def prefill(
    session: Session,
    prompts: Sequence[PromptTokens],
    visual_offsets: Sequence[int],
    chunk: int,
    pad_token_id: int,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Run every prompt token through `session`; what is left behind is the first fixation and the first token.

    visual_offsets: where each page's visual tokens start in the batch's visual_embeds. Pages whose next piece is of
    the other kind, or that are through, wait as padding. progress(done, total) is called in prompt tokens.
    """
    cursors = [_Cursor(prompt, offset) for prompt, offset in zip(prompts, visual_offsets, strict=True)]
    total = sum(c.remaining for c in cursors)
    done = 0
    while any(c.remaining > 1 for c in cursors):
        kind = next(c.kind for c in cursors if c.remaining > 1)
        counts = np.array([c.available(kind, chunk) for c in cursors], np.int64)
        rows = int(counts.max())
        input_ids = np.full((len(cursors), rows), pad_token_id, np.int64)
        position_ids = np.zeros((3, len(cursors), rows), np.int64)
        for b, cursor in enumerate(cursors):
            ids, positions = cursor.take(int(counts[b]))
            input_ids[b, : len(ids)] = ids
            position_ids[:, b, : len(ids)] = positions
        session.prefill(kind, input_ids, position_ids, counts)
        done += int(counts.sum())
        if progress:
            progress(done, total)
    last = [c.take(1) for c in cursors]
    session.finish_prefill(np.stack([ids for ids, _ in last]), np.stack([positions for _, positions in last], axis=1))
    if progress:
        progress(total, total)


class _Cursor:
    """Where one prompt stands."""

    def __init__(self, prompt: PromptTokens, visual_offset: int) -> None:
        self._chunks = [
            (c.kind, np.where(c.input_ids < 0, c.input_ids - visual_offset, c.input_ids), c.position_ids)
            for c in prompt.chunks
            if len(c.input_ids)
        ]
        if not self._chunks or self._chunks[-1][0] != "text":
            raise ValueError("a prompt must end with a text token")
        self._at = (0, 0)
        self.remaining = sum(len(ids) for _, ids, _ in self._chunks)

    @property
    def kind(self) -> str:
        return self._chunks[self._at[0]][0]

    def available(self, kind: str, limit: int) -> int:
        """Tokens of `kind` that come next, at most `limit`, the prompt's very last token excepted."""
        if self.remaining <= 1 or self.kind != kind:
            return 0
        index, start = self._at
        return min(limit, len(self._chunks[index][1]) - start, self.remaining - 1)

    def take(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """The next `count` ids [count] and positions [3,count], all of one kind."""
        if count == 0:
            return np.zeros(0, np.int64), np.zeros((3, 0), np.int64)
        index, start = self._at
        _, ids, positions = self._chunks[index]
        self.remaining -= count
        self._at = (index, start + count) if start + count < len(ids) else (index + 1, 0)
        return ids[start : start + count], positions[:, start : start + count]
