"""Where fastocr-parse writes: page by page, held nowhere, and a file appears only when it is whole."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from ..errors import FastOCRError
from ._records import SCHEMA, PageRecord, Summary


class Writer(Protocol):
    """Takes pages in order. `close` ends the output; nothing is left behind where no page was delivered."""

    def page(self, record: PageRecord) -> None: ...

    def close(self, summary: Summary, complete: bool) -> None: ...


class AtomicFile:
    """A text file that is written beside its target and renamed over it by `commit`.

    It is opened at once, so that an output that cannot be written is told before the work and not after it.
    FastOCRError where that is so.
    """

    def __init__(self, target: Path):
        self.target = target
        self.part = target.with_name(f".{target.name}.{os.getpid()}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir():
                raise FastOCRError(f"cannot write {target}: it is a directory; end it with / to write files into it")
            self.file: TextIO = self.part.open("w", encoding="utf-8")
        except OSError as error:
            raise cannot_write(target, error) from None

    def commit(self) -> None:
        """FastOCRError where the disk does not take it; then nothing is left."""
        try:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.file.close()
            self.part.replace(self.target)
        except OSError as error:
            self.discard()
            raise cannot_write(self.target, error) from None

    def discard(self) -> None:
        with suppress(OSError):  # closing flushes what the disk did not take
            self.file.close()
        self.part.unlink(missing_ok=True)


def cannot_write(target: Path, error: OSError) -> FastOCRError:
    return FastOCRError(f"cannot write {target}: {error.strerror or error}; choose another place with -o")


class TextWriter:
    """The pages' texts. A form feed stands between pages (a blank line on a terminal); failed pages are left out."""

    def __init__(self, file: TextIO, separator: str):
        self.file = file
        self.separator = separator
        self.written = False

    def start(self) -> None:
        """A new page begins here; `piece`s may follow, or `page` which does both."""
        if self.written:
            self.file.write(self.separator)
        self.written = True

    def piece(self, text: str) -> None:
        self.file.write(text)
        self.file.flush()

    def page(self, record: PageRecord) -> None:
        if record.error is None:
            self.start()
            self.piece(record.text + "\n")

    def close(self, summary: Summary, complete: bool) -> None:
        self.file.flush()


class JsonWriter:
    """One object: schema, fastocr_version, engine, options, pages, summary; written as the pages come.

    Failed pages wait until a page was read, so that a run which read nothing writes nothing.
    """

    def __init__(self, file: TextIO, head: dict[str, Any]):
        self.file = file
        self.head = head
        self.waiting: list[PageRecord] = []
        self.written = False

    def page(self, record: PageRecord) -> None:
        self.waiting.append(record)
        if record.error is not None and not self.written:
            return
        for each in self.waiting:
            self.file.write(",\n" if self.written else self._opening())
            self.file.write("    " + json.dumps(each.to_dict(), ensure_ascii=False))
            self.written = True
        self.waiting.clear()
        self.file.flush()

    def close(self, summary: Summary, complete: bool) -> None:
        if self.written:
            self.file.write(f'\n  ],\n  "summary": {json.dumps(summary.to_dict(complete))}\n}}\n')
            self.file.flush()

    def _opening(self) -> str:
        fields = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in self.head.items())
        return "{\n" + fields + '  "pages": [\n'


class FileWriter:
    """A TextWriter or a JsonWriter into one file, which appears at `close`, and only where a page was delivered.

    FastOCRError where the disk does not take it, a full one for example: then no file appears.
    """

    def __init__(self, target: Path, form: str, head: dict[str, Any]):
        self.atomic = AtomicFile(target)
        self.inner = make_inner(self.atomic.file, form, head)
        self.torn = False

    def page(self, record: PageRecord) -> None:
        try:
            self.inner.page(record)
        except OSError as error:
            self.torn = True
            raise cannot_write(self.atomic.target, error) from None

    def close(self, summary: Summary, complete: bool) -> None:
        if self.torn or not self.inner.written:
            self.atomic.discard()
            return
        try:
            self.inner.close(summary, complete)
        except OSError as error:
            self.atomic.discard()
            raise cannot_write(self.atomic.target, error) from None
        self.atomic.commit()


class FolderWriter:
    """A file per source, named after it, each whole when the next source begins.

    Two sources of one name get numbers: scan.txt, scan-2.txt.
    """

    def __init__(self, folder: Path, form: str, head: dict[str, Any]):
        self.folder, self.form, self.head = folder, form, head
        self.source: str | None = None
        self.names: set[str] = set()
        self.current: FileWriter | None = None
        self.summary = Summary()
        AtomicFile(folder / "fastocr").discard()  # tells at once whether the folder can be written

    def page(self, record: PageRecord) -> None:
        if record.source != self.source:
            self._end(complete=True)
            self.source = record.source
            self.current = FileWriter(self.folder / self._name(record.source), self.form, self.head)
        self.current.page(record)
        self.summary.add(record)

    def close(self, summary: Summary, complete: bool) -> None:
        self._end(complete)

    def _end(self, complete: bool) -> None:
        if self.current is not None:
            self.current.close(self.summary, complete)
        self.current, self.summary = None, Summary()

    def _name(self, source: str) -> str:
        stem, suffix = Path(source).stem, ".json" if self.form == "json" else ".txt"
        name, number = stem + suffix, 2
        while name in self.names:
            name, number = f"{stem}-{number}{suffix}", number + 1
        self.names.add(name)
        return name


def make_inner(file: TextIO, form: str, head: dict[str, Any]) -> TextWriter | JsonWriter:
    if form == "json":
        return JsonWriter(file, {"schema": SCHEMA, **head})
    return TextWriter(file, "\n" if file.isatty() else "\f")


def make_writer(output: str | None, form: str, head: dict[str, Any]) -> Writer:
    """Standard output (None), a file, or a folder: one that is there, or a name that ends in a slash."""
    if output is None:
        return make_inner(sys.stdout, form, head)
    if output.endswith("/") or Path(output).is_dir():
        return FolderWriter(Path(output), form, head)
    return FileWriter(Path(output), form, head)
