"""An engine directory while engines are built in it: one build at a time, and folders that change places."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import ExportError

try:
    import fcntl
except ImportError:  # not on Windows, where two builds at once are not told
    fcntl = None


@contextmanager
def only_build(directory: Path) -> Iterator[None]:
    """No other build in `directory` until the block ends; ExportError where there is one.

    What builds that were killed left behind is removed.
    """
    if fcntl is None:
        yield
        return
    place = os.open(directory, os.O_RDONLY)
    try:
        locked = _lock(place, directory)
        if locked:
            for left in directory.glob(".engines.*.partial"):
                shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(place)  # which gives the lock back, as the end of the process does


def _lock(place: int, directory: Path) -> bool:
    """Whether the lock was taken: some network disks have none."""
    try:
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ExportError(
            f"another process builds engines in {directory}; wait for its end, or copy the directory"
        ) from None
    except OSError:
        return False
    return True


@contextmanager
def swap(place: Path, new: Path, old: Path) -> Iterator[None]:
    """Put `new` at `place`, and what is there, if anything, at `old`; an error within the block puts it back."""
    moved = False
    try:
        if place.exists():
            place.rename(old)
        new.rename(place)
        moved = True
        yield
    except BaseException:
        if moved:
            place.rename(new)
        if old.exists():
            with suppress(OSError):
                old.rename(place)
        raise
