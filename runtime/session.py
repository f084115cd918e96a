"""What a decoder backend must offer. The decode loop knows only this."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np

Mode = Literal["fast", "dense"]
MODES: tuple[Mode, ...] = ("fast", "dense")


class Session(Protocol):
    """One engine directory in one library. A batch is `begin`, `prefill` until the last prompt token, `step`s.

    B is the batch, n the rows of a chunk, P the patches of an image.
    """

    def encode_image(
        self,
        pixel_values: np.ndarray,
        rotary_positions: np.ndarray,
        window_rows: np.ndarray,
        window_inverse: np.ndarray,
    ) -> np.ndarray:
        """Visual tokens [P / merge^2, hidden_size] of one image."""
        ...

    def begin(self, visual_embeds: np.ndarray, num_fixations: np.ndarray) -> None:
        """Start a batch: visual_embeds [rows, hidden_size] of all its pages, num_fixations [B] per page."""
        ...

    def prefill(self, kind: str, input_ids: np.ndarray, position_ids: np.ndarray, counts: np.ndarray) -> None:
        """Append a chunk of one kind, `text` or `visual`.

        input_ids [B,n], position_ids [3,B,n]; counts [B]: how many of the n rows are real, per page.
        """
        ...

    def finish_prefill(self, input_ids: np.ndarray, position_ids: np.ndarray) -> None:
        """Feed each page's last prompt token [B,1], positions [3,B,1].

        Leaves the first fixation and the first token.
        """
        ...

    def step(self, mode: Mode) -> None:
        """Feed the token that the last call left; leaves the next one."""
        ...

    def next_tokens(self) -> np.ndarray:
        """[B] int64, the greedy choice after the last call."""
        ...

    def logits(self) -> np.ndarray:
        """[B, vocab_size] float32 after the last call."""
        ...

    def choose(self, tokens: np.ndarray) -> None:
        """Put tokens [B] in the place of the greedy choice."""
        ...

    def set_active(self, active: np.ndarray) -> None:
        """[B] bool: pages still being written. The others stand still."""
        ...

    def fixation(self) -> np.ndarray:
        """[B,KV,k] int64: what the last focal layer chose at the last call, -1 where unused."""
        ...


class HostSession(Session, Protocol):
    """A session whose `logits` are in the host's memory, so that looking at them costs next to nothing."""

    logits_on_host: bool


class GroupedSession(Session, Protocol):
    """A session whose host reads tokens behind the device: several steps are given to it before the first is read.

    The decode loop uses `steps` where a session has a `group_size` above 1.
    """

    group_size: int
    """How many steps are best run at once."""

    def steps(self, mode: Mode, count: int) -> np.ndarray:
        """As `count` times `step`, each fed the greedy choice of the one before; [count, B] int64, those choices."""
        ...
