"""The folder that fastocr-parse --trace writes: a file a page."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ._files import cannot_write, check_writable

if TYPE_CHECKING:
    from ..runtime.trace import Trace


LONGEST_STEM = 200  # bytes; file systems take 255 for a name, and it gets numbers and an ending


class TraceFolder:
    """Files named after a page's source, SOURCE.pN.npz; sources of one name get numbers: scan, scan-2.

    A file of an earlier run is replaced; a very long name is cut. FastOCRError, at once, where the folder cannot be
    written.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._stems: dict[str, str] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error, "--trace") from None
        check_writable(folder / "traces", "--trace")

    def save(self, trace: Trace, source: str, page: int) -> Path:
        """Write the trace of `page` of `source`; where it is then."""
        path = self.folder / f"{self._stem(source)}.p{page}.npz"
        try:
            replace(trace, source=source, page=page).save(path)
        except OSError as error:
            raise cannot_write(path, error, "--trace") from None
        return path

    def _stem(self, source: str) -> str:
        if source not in self._stems:
            plain, number = Path(source).stem, 2
            while len(os.fsencode(plain)) > LONGEST_STEM:
                plain = plain[:-1]
            name = plain
            while name in self._stems.values():
                name, number = f"{plain}-{number}", number + 1
            self._stems[source] = name
        return self._stems[source]
