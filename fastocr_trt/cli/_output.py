"""Where fastocr-parse writes: page by page, held nowhere, and a file appears only when it is whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeAlias

from ..errors import FastOCRError
from ._files import AtomicFile, FileId, cannot_write, check_no_input, file_ids, open_output
from ._records import SCHEMA, PageRecord, Summary

Head: TypeAlias = Callable[[], dict[str, Any]]
"""What JSON says before its pages; asked for with the first page that was read, since it tells of the engine."""


class Writer(Protocol):
    """Takes pages in order. `close` ends the output; nothing is left behind where no page was delivered."""

    def page(self, record: PageRecord) -> None: ...

    def close(self, summary: Summary, complete: bool) -> None: ...


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

    def __init__(self, file: TextIO, head: Head):
        self.file = file
        self.head = head
        self.ascii = not (file.encoding or "utf").lower().startswith("utf")
        self.waiting: list[PageRecord] = []
        self.written = False

    def page(self, record: PageRecord) -> None:
        self.waiting.append(record)
        if record.error is not None and not self.written:
            return
        for each in self.waiting:
            # In one write, so that a page is there whole or not at all.
            before = ",\n" if self.written else self._opening()
            self.file.write(f"{before}    {json.dumps(each.to_dict(), ensure_ascii=self.ascii)}")
            self.written = True
        self.waiting.clear()
        self.file.flush()

    def close(self, summary: Summary, complete: bool) -> None:
        if self.written:
            self.file.write(f'\n  ],\n  "summary": {json.dumps(summary.to_dict(complete))}\n}}\n')
            self.file.flush()

    def _opening(self) -> str:
        head = {"schema": SCHEMA, **self.head()}
        fields = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in head.items())
        return "{\n" + fields + '  "pages": [\n'


class FileWriter:
    """A TextWriter or a JsonWriter into one file, which appears at `close`, and only where a page was delivered.

    FastOCRError where the disk does not take it, a full one for example: then no file appears. A FIFO or a device gets
    the pages as they come.
    """

    def __init__(self, target: Path, form: str, head: Head, inputs: frozenset[FileId]):
        self.output = open_output(target, inputs)
        self.inner = make_inner(self.output.file, form, head)
        self.torn = False

    def page(self, record: PageRecord) -> None:
        try:
            self.inner.page(record)
        except OSError as error:
            self.torn = True
            raise cannot_write(self.output.target, error) from None

    def close(self, summary: Summary, complete: bool) -> None:
        if self.torn or not self.inner.written:
            self.output.discard()
            return
        try:
            self.inner.close(summary, complete)
        except OSError as error:
            self.output.discard()
            raise cannot_write(self.output.target, error) from None
        self.output.commit()


class FolderWriter:
    """A file per source, named after it, each whole when the next source begins.

    Two sources of one name get numbers: scan.txt, scan-2.txt.
    """

    def __init__(self, folder: Path, form: str, head: Head, sources: Sequence[Path]):
        self.folder, self.form, self.head = folder, form, head
        self.inputs = file_ids(sources)
        self.source: str | None = None
        self.names: set[str] = set()
        self.current: FileWriter | None = None
        self.summary = Summary()
        # What can be told at once is: whether the folder can be written, and whether a page would be overwritten.
        AtomicFile(folder / "fastocr").discard()
        for source in sources:
            check_no_input(folder / self._plain_name(source), self.inputs)

    def page(self, record: PageRecord) -> None:
        if record.source != self.source:
            self._end(complete=True)
            self.source = record.source
            self.current = FileWriter(self.folder / self._name(record.source), self.form, self.head, self.inputs)
        self.current.page(record)
        self.summary.add(record)

    def close(self, summary: Summary, complete: bool) -> None:
        self._end(complete)

    def _end(self, complete: bool) -> None:
        if self.current is not None:
            self.current.close(self.summary, complete)
        self.current, self.summary = None, Summary()

    def _plain_name(self, source: str | Path) -> str:
        return Path(source).stem + (".json" if self.form == "json" else ".txt")

    def _name(self, source: str) -> str:
        plain = Path(self._plain_name(source))
        name, number = plain.name, 2
        while name in self.names:
            name, number = f"{plain.stem}-{number}{plain.suffix}", number + 1
        self.names.add(name)
        return name


def make_inner(file: TextIO, form: str, head: Head) -> TextWriter | JsonWriter:
    if form == "json":
        return JsonWriter(file, head)
    return TextWriter(file, "\n" if file.isatty() else "\f")


def make_writer(output: str | None, form: str, head: Head, sources: Sequence[Path]) -> Writer:
    """Standard output (None), a file, or a folder: one that is there, or a name that ends in a slash.

    sources: the files to read. FastOCRError where the output cannot be written, or is one of them.
    """
    if output is None:
        if not sys.stdout.writable():
            raise FastOCRError("standard output is closed; name a file with -o")
        return make_inner(sys.stdout, form, head)
    target = Path(output)
    try:
        folder = output.endswith("/") or target.is_dir()
    except OSError as error:
        raise cannot_write(target, error) from None
    return FolderWriter(target, form, head, sources) if folder else FileWriter(target, form, head, file_ids(sources))
