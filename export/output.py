"""A directory that appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import ExportError
from ..manifest import MANIFEST_NAME


def check_output(output: Path, force: bool) -> None:
    """Raise ExportError where `output` may not be written: taken without `force`, or not an engine."""
    if not output.exists() and not output.is_symlink():
        return
    if not output.is_dir():
        raise ExportError(f"{output} is a file; give a directory for the engine")
    if not any(output.iterdir()):
        return
    if not (output / MANIFEST_NAME).is_file():
        raise ExportError(f"{output} is not empty and not an engine: nothing of it is replaced; give another directory")
    if not force:
        raise ExportError(f"{output} is an engine already; give --force to replace it, or another directory")


@contextmanager
def new_directory(output: Path, force: bool = False) -> Iterator[Path]:
    """A temporary directory beside `output`, which takes its place when the block ends without an error.

    An engine that is there stays until then. Raises ExportError as `check_output` does, and where the disk is full
    or the place cannot be written.
    """
    check_output(output, force)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".partial", dir=output.parent))
    except OSError as error:
        raise _cannot_write(output, error) from None
    try:
        temporary.chmod(0o777 & ~_umask())  # mkdtemp makes it private
        yield temporary
        check_output(output, force)  # someone may have put a directory there meanwhile
        _replace(temporary, output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG):
            raise _cannot_write(output, error) from error
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_space(output: Path, wanted: int) -> None:
    """Raise ExportError where the disk of the directory `output` has less than `wanted` bytes free."""
    free = shutil.disk_usage(output).free
    if free < wanted:
        raise ExportError(
            f"the engine needs about {wanted / 1e6:,.1f} MB and the disk of {output.parent} has "
            f"{free / 1e6:,.1f} MB free; make room or give a directory on another disk"
        )


def _replace(temporary: Path, output: Path) -> None:
    if not output.exists():
        temporary.rename(output)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=".old", dir=output.parent))
    try:
        output.rename(old / output.name)
        try:
            temporary.rename(output)
        except OSError:
            (old / output.name).rename(output)
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _cannot_write(output: Path, error: OSError) -> ExportError:
    reason = error.strerror or str(error)
    return ExportError(f"{output} cannot be written ({reason}); make room, or give a directory you may write to")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
