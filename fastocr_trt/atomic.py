"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what was written takes the place of `path` when the block ends, and is gone where it fails.

    A link stays and is followed. A device or FIFO, which cannot be replaced, is itself what the block writes to.
    An OSError names `path`, also where the system named no file (a full disk) or the one that is written to.
    """
    part = None
    try:
        if _is_special(path):
            yield path
            return
        real, part = real_and_part(path)
        yield part
        part.replace(real)
    except OSError as error:
        if error.filename is None or (part is not None and Path(os.fsdecode(error.filename)) == part):
            error.filename = str(path)
        raise
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def real_and_part(path: Path) -> tuple[Path, Path]:
    """What `path` leads to, through links, and a file beside it to write what will take its place."""
    real = Path(os.path.realpath(path))
    # A short name of its own, since `path` may have one that is as long as a file system takes.
    return real, real.with_name(f".fastocr-{os.getpid()}-{threading.get_ident()}.part")


def _is_special(path: Path) -> bool:
    """Whether `path` is there, and neither a file nor a folder, under whatever links."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
