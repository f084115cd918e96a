"""PDF files to RGB, a page at a time, by PDFium."""

from __future__ import annotations

import math
import os
import threading
from contextlib import suppress
from pathlib import Path

from PIL import Image

from ..errors import FastOCRError, PageError
from .images import DEFAULT_MAX_PIXELS, MIN_SIDE, check_size, open_file

DEFAULT_DPI = 200
MIN_DPI, MAX_DPI = 10, 2400
_POINTS_PER_INCH = 72
_READS_PER_OPENING = 16  # PDFium keeps what it has parsed of a document, scans included, until it is closed

_pdfium = threading.Lock()  # PDFium is not thread-safe


def is_pdf(path: Path) -> bool:
    """Whether the content says PDF, whatever the name says. Raises PageError where the file cannot be read."""
    with open_file(path) as file:
        return b"%PDF-" in file.read(1024)  # readers take leading junk up to here


def check_dpi(dpi: float) -> None:
    """Raise FastOCRError where `dpi` is no resolution that a page can be drawn at."""
    if isinstance(dpi, bool) or not isinstance(dpi, (int, float)) or not MIN_DPI <= dpi <= MAX_DPI:
        raise FastOCRError(f"dpi is {dpi!r}; it must be a number from {MIN_DPI} to {MAX_DPI} (200 suits most pages)")


class PdfDocument:
    """A PDF file. count: its pages. Raises PageError where it is encrypted, damaged or has no page."""

    notes: tuple[str, ...] = ()
    error: PageError | None = None

    def __init__(self, path: Path, dpi: float = DEFAULT_DPI, max_pixels: int = DEFAULT_MAX_PIXELS):
        check_dpi(dpi)
        self._path, self._dpi, self._max_pixels = path, dpi, max_pixels
        self._reads = 0
        with _pdfium:
            self._document = _open(path)
            self.count = len(self._document)

    def read(self, index: int) -> Image.Image:
        """Page `index` (from 0) drawn at the document's dpi as 8-bit RGB. PageError: damaged or too large."""
        name = f"{self._path}, page {index + 1}"
        with _pdfium:
            self._reads += 1
            if self._reads % _READS_PER_OPENING == 0:
                self._reopen()
            try:
                page = self._document[index]
                try:
                    scale = self._dpi / _POINTS_PER_INCH
                    size = page.get_size()
                    width, height = (math.ceil(side * scale) for side in size)
                    ways_out = _higher_dpi(*size), self._lower_dpi(width, height)
                    check_size(width, height, name, self._max_pixels, *ways_out)
                    bitmap = page.render(scale=scale, rev_byteorder=True)
                    try:
                        return bitmap.to_pil().convert("RGB").copy()
                    finally:
                        bitmap.close()
                finally:
                    page.close()
            except PageError:
                raise
            except Exception as error:
                raise PageError(f"{name} is damaged and cannot be drawn ({error})") from None

    def close(self) -> None:
        with _pdfium:
            self._document.close()

    def _reopen(self) -> None:
        """Let go of what PDFium has kept. A file that is gone by now is read on as it is open."""
        with suppress(PageError):
            fresh = _open(self._path)
            self._document.close()
            self._document = fresh

    def _lower_dpi(self, width: int, height: int) -> str:
        fits = math.floor(self._dpi * math.sqrt(self._max_pixels / (width * height)))
        # Not to the last pixel: both sides are rounded up.
        return f"use --dpi {fits - 1} or lower" if fits - 1 >= MIN_DPI else "make the page smaller"


def _higher_dpi(width: float, height: float) -> str:
    """The way out where a page of so many points is drawn too small."""
    needed = math.ceil(MIN_SIDE * _POINTS_PER_INCH / max(min(width, height), 1e-9))
    return f"use --dpi {needed} or higher" if needed <= MAX_DPI else "no --dpi is enough for it"


def _open(path: Path):
    """The document, with at least one page. PageError where there is none or it is encrypted or damaged."""
    import pypdfium2  # takes a quarter of a second: only where there is a PDF

    try:
        document = pypdfium2.PdfDocument(path)
    except FileNotFoundError:
        raise PageError(f"{path} does not exist: check the name") from None
    except pypdfium2.PdfiumError:
        raise _not_opened(path) from None
    try:
        document.init_forms()  # else the words typed into a form are not drawn
        if len(document):
            return document
    except pypdfium2.PdfiumError:
        pass
    document.close()
    raise _without_pages(path)


def _not_opened(path: Path) -> PageError:
    """Why PDFium refuses `path`. Asked once more, since the helper reports an empty document with a stale reason."""
    from pypdfium2 import raw

    document = raw.FPDF_LoadDocument(os.fsencode(path.resolve()) + b"\0", None)
    if document:
        raw.FPDF_CloseDocument(document)
        return _without_pages(path)
    error = raw.FPDF_GetLastError()
    if error == raw.FPDF_ERR_SECURITY:
        return PageError(f"{path} is protected in a way that PDFium does not know: save a copy without protection")
    if error == raw.FPDF_ERR_PASSWORD:
        return PageError(
            f"{path} is encrypted and needs a password: save a copy without one (for example with `qpdf --decrypt`)"
        )
    return PageError(f"{path} is damaged, or cut short, and cannot be opened: copy it again")


def _without_pages(path: Path) -> PageError:
    return PageError(f"{path} has no pages: it is an empty PDF, or damaged")
