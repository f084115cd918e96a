"""PDF files to RGB, a page at a time, by PDFium."""

from __future__ import annotations

import math
import threading
from pathlib import Path

from PIL import Image

from ..errors import FastOCRError, PageError
from .images import DEFAULT_MAX_PIXELS, check_size, open_file

DEFAULT_DPI = 200
MIN_DPI, MAX_DPI = 10, 2400
_POINTS_PER_INCH = 72
_PASSWORD = 4  # FPDF_ERR_PASSWORD

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
        import pypdfium2  # takes a quarter of a second: only where there is a PDF

        check_dpi(dpi)
        self._path, self._dpi, self._max_pixels = path, dpi, max_pixels
        with _pdfium:
            try:
                self._document = pypdfium2.PdfDocument(path)
            except pypdfium2.PdfiumError as error:
                raise self._not_opened(error) from None
            try:
                self._document.init_forms()  # else the words typed into a form are not drawn
                self.count = len(self._document)
            except pypdfium2.PdfiumError:
                self.count = 0
            if not self.count:
                self._document.close()
                raise PageError(f"{path} has no page: it is an empty or a damaged PDF")

    def read(self, index: int) -> Image.Image:
        """Page `index` (from 0) drawn at the document's dpi as 8-bit RGB. PageError: damaged or too large."""
        name = f"{self._path}, page {index + 1}"
        with _pdfium:
            try:
                page = self._document[index]
                try:
                    scale = self._dpi / _POINTS_PER_INCH
                    width, height = (math.ceil(side * scale) for side in page.get_size())
                    check_size(width, height, name, self._max_pixels, self._lower_dpi(width, height))
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

    def _lower_dpi(self, width: int, height: int) -> str:
        fits = math.floor(self._dpi * math.sqrt(self._max_pixels / (width * height)))
        # Not to the last pixel: both sides are rounded up.
        return f"use --dpi {fits - 1} or lower" if fits - 1 >= MIN_DPI else "make the page smaller"

    def _not_opened(self, error: Exception) -> PageError:
        if getattr(error, "err_code", None) == _PASSWORD or "password" in str(error).lower():
            return PageError(
                f"{self._path} is encrypted and needs a password: "
                "save a copy without one (for example with `qpdf --decrypt`)"
            )
        return PageError(f"{self._path} is damaged, or cut short, and no PDF reader can open it: copy it again")
