"""Whose turn it is to use an engine's session: one call or one open stream at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import FastOCRError

PATIENCE = 60.0
"""Seconds for which an open stream may stand still before the calls that wait for it give up."""
LOOK_AGAIN = 0.5
"""Seconds after which a call that waits looks whether the stream still moves."""


class Turn:
    """Calls wait for each other, but none waits for what may never come.

    A stream keeps the turn between its pieces, when no thread is at work on it. It is taken to be in the hands of the
    thread that took its last piece: that one is refused at once, since it would wait for itself. Other threads wait,
    until the stream ends or has stood still for PATIENCE; then they are refused, too. A refusal is a FastOCRError.
    """

    def __init__(self) -> None:
        # Its lock is re-entrant: a stream that the garbage collector ends may do so while this very thread holds it.
        self._changed = threading.Condition()
        self._holder: threading.Thread | None = None
        self._still_since: float | None = None  # of a stream between two pieces

    def __enter__(self) -> Turn:
        with self._changed:
            while self._holder is not None:
                self._check_wait()
                self._changed.wait(LOOK_AGAIN)
            self._holder, self._still_since = threading.current_thread(), None
        return self

    def __exit__(self, *error: object) -> None:
        with self._changed:
            self._holder = self._still_since = None
            self._changed.notify()

    @contextmanager
    def piece_given(self) -> Iterator[None]:
        """Within: the stream that has the turn stands still. Whoever leaves it goes on with the stream."""
        self._still_since = time.monotonic()
        yield
        with self._changed:
            self._holder, self._still_since = threading.current_thread(), None

    def _check_wait(self) -> None:
        if self._holder is threading.current_thread():
            raise FastOCRError("this thread has an open stream of this engine; take it to its end or close it first")
        if self._still_since is not None and time.monotonic() - self._still_since >= PATIENCE:
            raise FastOCRError(
                f"a stream of this engine is open and was not read on for {PATIENCE:g} s; take it to its end or close "
                "it, then call again"
            )
