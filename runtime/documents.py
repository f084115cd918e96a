"""Files and folders to pages, one at a time: a 500-page document never sits in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..counts import check_count, plural
from ..errors import FastOCRError, PageError
from .images import DEFAULT_MAX_PIXELS, IMAGE_SUFFIXES, ImageDocument, to_rgb
from .page_range import PageRange
from .pdf import DEFAULT_DPI, PdfDocument, check_dpi, is_pdf

SUFFIXES = (*IMAGE_SUFFIXES, ".pdf")
"""What is picked from a folder. A file named on its own is judged by its content."""


@dataclass(frozen=True)
class Page:
    """One page: `image` (8-bit RGB) or, where it could not be read, `error`; never both.

    source: the file (or the folder, where that is what failed). index: page of the file, from 1.
    count: pages of the file, 1 where that is unknown. notes: what was skipped or left out, for the user to know.
    """

    source: Path
    index: int
    image: Image.Image | None
    error: PageError | None = None
    count: int = 1
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """`scan.png`, or `scan.pdf, page 3` where the file has several pages."""
        return str(self.source) if self.count == 1 else f"{self.source}, page {self.index}"


def iter_pages(
    paths: str | Path | Sequence[str | Path],
    *,
    pages: str | None = None,
    dpi: float = DEFAULT_DPI,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> Iterator[Page]:
    """Pages of files and folders, in the order given; of a folder, its files in natural order (2 before 10).

    pages: which of EACH file, from 1, as "1-3,7" or "5-"; a page that a file lacks is a Page with an error.
    dpi: resolution that PDF pages are drawn at. max_pixels: what is larger is refused before it is decoded.
    A file or page that cannot be read is a Page with an error, and the next ones follow.
    Raises FastOCRError at once, before any page is read, for a bad `pages`, `dpi` or `max_pixels`, no path, or a
    path that does not exist.
    """
    paths, chosen = _check(paths, pages, dpi, max_pixels)
    return _pages(paths, chosen, dpi, max_pixels)


@dataclass(frozen=True)
class PageCount:
    """Pages that `iter_pages` will give. total: all of them; readable: without those that are known to be errors."""

    total: int
    readable: int


def count_pages(paths: str | Path | Sequence[str | Path], pages: str | None = None) -> PageCount:
    """How many Pages `iter_pages` will give; nothing is decoded, so a damaged picture counts as readable still."""
    paths, chosen = _check(paths, pages, DEFAULT_DPI, DEFAULT_MAX_PIXELS)
    total = readable = 0
    for file in _files(paths):
        found, errors = (), 1
        if isinstance(file, _File):
            with suppress(PageError), closing(_open(file.path, DEFAULT_DPI, DEFAULT_MAX_PIXELS)) as document:
                found, missing = chosen.select(document.count)
                errors = int(bool(document.error or missing))
        readable += len(found)
        total += len(found) + errors
    return PageCount(total, readable)


def list_files(paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files whose pages `iter_pages` will give."""
    paths, _ = _check(paths, None, DEFAULT_DPI, DEFAULT_MAX_PIXELS)
    return [file.path for file in _files(paths) if isinstance(file, _File)]


def load_image(
    image: str | Path | Image.Image, *, dpi: float = DEFAULT_DPI, max_pixels: int = DEFAULT_MAX_PIXELS
) -> Image.Image:
    """The one page of a file, or a Pillow image, as a new 8-bit RGB image (see `images.to_rgb`).

    Raises PageError where it cannot be read, FastOCRError where the file holds several pages or is no file.
    """
    _check_max_pixels(max_pixels)
    if isinstance(image, Image.Image):
        return to_rgb(image, getattr(image, "filename", "") or "the image", max_pixels)
    if not isinstance(image, (str, Path)):
        raise FastOCRError(f"a page is a path or a Pillow image, not {type(image).__name__}")
    path = Path(image)
    with closing(_open(path, dpi, max_pixels)) as document:
        if document.count > 1:
            raise FastOCRError(f"{path} has {plural(document.count, 'page')}; take them one at a time with iter_pages")
        return document.read(0)


@dataclass(frozen=True)
class _File:
    path: Path
    notes: tuple[str, ...] = ()


def _pages(paths: list[Path], chosen: PageRange, dpi: float, max_pixels: int) -> Iterator[Page]:
    for file in _files(paths):
        if isinstance(file, Page):
            yield file
            continue
        try:
            document = _open(file.path, dpi, max_pixels)
        except PageError as error:
            yield Page(file.path, 1, None, error, notes=file.notes)
            continue
        with closing(document):
            notes = file.notes + document.notes
            for page in _read(file.path, document, chosen):
                yield Page(file.path, *page, document.count, notes)
                notes = ()  # said once, with the first page


def _read(path: Path, document: ImageDocument | PdfDocument, chosen: PageRange):
    """(index, image, error) of each chosen page; what the file lacks comes last, as one error."""
    found, missing = chosen.select(document.count)
    for index in found:
        try:
            yield index, document.read(index - 1), None
        except PageError as error:
            yield index, None, error
    if document.error:
        yield document.count + 1, None, document.error
    elif missing:
        has = plural(document.count, "page")
        yield missing[0], None, PageError(f"{path} has {has}, and --pages asks for {_ranges(missing)}")


def _open(path: Path, dpi: float, max_pixels: int) -> ImageDocument | PdfDocument:
    return PdfDocument(path, dpi, max_pixels) if is_pdf(path) else ImageDocument(path, max_pixels)


def _files(paths: list[Path]) -> Iterator[_File | Page]:
    """Each file to read; a folder that gives none is a Page with an error."""
    for path in paths:
        if not path.is_dir():
            yield _File(path)
            continue
        try:
            entries = sorted((p for p in path.iterdir() if not p.name.startswith(".")), key=_natural)
        except OSError as error:
            yield Page(path, 1, None, PageError(f"{path} cannot be listed: {error.strerror or error}"))
            continue
        files = [p for p in entries if p.suffix.lower() in SUFFIXES and p.is_file()]
        skipped = [p.name for p in entries if p not in files]
        if not files:
            kinds = ", ".join(s[1:] for s in SUFFIXES)
            yield Page(path, 1, None, PageError(f"{path} holds no page: none of its files is one of {kinds}"))
            continue
        notes = (f"{path}: skipped {_list(skipped)}: not pages, or no regular files",) if skipped else ()
        for file in files:
            yield _File(file, notes)
            notes = ()


def _check(paths, pages: str | None, dpi: float, max_pixels: int) -> tuple[list[Path], PageRange]:
    paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
    if not paths:
        raise FastOCRError("no page to read: name at least one image, PDF or folder")
    check_dpi(dpi)
    _check_max_pixels(max_pixels)
    chosen = PageRange.parse(pages)
    paths = [Path(p) for p in paths]
    absent = [str(p) for p in paths if not _exists(p)]
    if absent:
        raise FastOCRError(f"{_list(absent)} {'does' if len(absent) == 1 else 'do'} not exist: check the name")
    return paths, chosen


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long
        return False


def _check_max_pixels(max_pixels: int) -> None:
    check_count(max_pixels, "max_pixels")


def _natural(path: Path) -> list:
    parts = re.split(r"(\d+)", path.name.casefold())
    return [(int(p), "") if p.isdecimal() else (-1, p) for p in parts] + [(-1, path.name)]


def _list(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _ranges(numbers: Sequence[int]) -> str:
    last = numbers[-1]
    return f"page {last}" if len(numbers) == 1 else f"pages {numbers[0]} to {last}"
