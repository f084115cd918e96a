"""The files that the commands write: whole or not at all, through links, and never over a page to read."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from ..atomic import real_and_part
from ..errors import FastOCRError

FileId = tuple[int, int]
"""Device and inode, by which one file is known under all its names."""

# A file name that is not UTF-8 has surrogates, which no stream takes; escaped, they are valid JSON too.
_ENCODING = {"encoding": "utf-8", "errors": "backslashreplace"}


class AtomicFile:
    """A text file that is written beside its target and renamed over it by `commit`; a link stays and is followed.

    It is opened at once, so that an output that cannot be written is told before the work and not after it.
    FastOCRError where that is so.
    """

    def __init__(self, target: Path):
        self.target = target
        self._real, self._part = real_and_part(target)
        try:
            self._real.parent.mkdir(parents=True, exist_ok=True)
            self.file: TextIO = self._part.open("w", **_ENCODING)
        except OSError as error:
            raise cannot_write(target, error) from None

    def commit(self) -> None:
        """FastOCRError where the disk does not take it; then nothing is left."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self._part.replace(self._real)
        except OSError as error:
            self.discard()
            raise cannot_write(self.target, error) from None

    def discard(self) -> None:
        with suppress(OSError):  # closing flushes what the disk did not take
            self.file.close()
        self._part.unlink(missing_ok=True)


class DirectFile:
    """A FIFO or a device: written as the pages come, since it can be neither replaced nor taken back."""

    def __init__(self, target: Path):
        self.target = target
        try:
            self.file: TextIO = target.open("w", **_ENCODING)
        except OSError as error:
            raise cannot_write(target, error) from None

    def commit(self) -> None:
        try:
            self.file.close()
        except OSError as error:
            raise cannot_write(self.target, error) from None

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()


def open_output(target: Path, inputs: frozenset[FileId]) -> AtomicFile | DirectFile:
    """`target` opened for writing. FastOCRError where it cannot be, or is one of `inputs`."""
    check_no_input(target, inputs)
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return AtomicFile(target)
    except OSError as error:
        raise cannot_write(target, error) from None
    if stat.S_ISDIR(mode):
        raise FastOCRError(f"cannot write {target}: it is a directory; end it with / to write files into it")
    return AtomicFile(target) if stat.S_ISREG(mode) else DirectFile(target)


def check_writable(target: Path, option: str = "-o") -> None:
    """FastOCRError where no file can be made beside `target` (of a link: what it leads to), whose folder is there;
    before the work, not after it."""
    _, part = real_and_part(target)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise cannot_write(target, error, option) from None


def file_ids(paths: Iterable[Path]) -> frozenset[FileId]:
    """The identities of those of `paths` that are there."""
    return frozenset(found for path in paths if (found := _file_id(path)) is not None)


def check_no_input(target: Path, inputs: frozenset[FileId], what: str = "a page to read", option: str = "-o") -> None:
    """Raise FastOCRError where `target` is one of `inputs`, under whatever name. what: what the inputs are."""
    if _file_id(target) in inputs:
        raise FastOCRError(f"cannot write {target}: it is {what}; choose another place with {option}")


def cannot_write(target: Path, error: OSError, option: str = "-o") -> FastOCRError:
    """option: the one that says where to write."""
    reason, way_out = error.strerror or str(error), f"choose another place with {option}"
    if error.errno == errno.ENAMETOOLONG:
        way_out = f"choose a shorter name with {option}"
    elif error.errno in (errno.ENOTDIR, errno.EEXIST):
        blocking = next(part for part in (target, *target.parents) if part.exists())
        reason = f"{blocking} is a file, not a folder"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        way_out = f"make room, or choose another place with {option}"
    return FastOCRError(f"cannot write {target}: {reason}; {way_out}")


def _file_id(path: Path) -> FileId | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
