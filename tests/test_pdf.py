"""PDF pages: drawn at the resolution asked for, in bounds, and clear words for what cannot be drawn."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from fastocr_trt.errors import FastOCRError, PageError
from fastocr_trt.runtime import pdf
from fastocr_trt.runtime.documents import count_pages, iter_pages, load_image

CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] >>"


def pages_object(*numbers: int) -> bytes:
    kids = b" ".join(b"%d 0 R" % number for number in numbers)
    return b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(numbers))


def write(path: Path, *objects: bytes, trailer: bytes = b"") -> Path:
    """A PDF of these objects, numbered from 1; the first is the catalogue."""
    out, offsets = io.BytesIO(b"%PDF-1.7\n"), []
    out.seek(0, io.SEEK_END)
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    start, size = out.tell(), len(objects) + 1
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % size + b"".join(b"%010d 00000 n \n" % o for o in offsets))
    out.write(b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, start))
    path.write_bytes(out.getvalue())
    return path


def test_resolution_sets_the_size(tmp_path):
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(3), PAGE)
    assert load_image(path).size == (556, 278)  # 200 x 100 points at 200 dpi, rounded up
    assert load_image(path, dpi=72).size == (200, 100)
    assert [page.image.size for page in iter_pages(path, dpi=36)] == [(100, 50)]


def test_what_is_drawn(tmp_path):
    content = b"1 0 0 rg 0 0 100 100 re f"  # the left half red
    stream = b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 100] /Contents 4 0 R >>"
    image = load_image(write(tmp_path / "a.pdf", CATALOG, pages_object(3), page, stream))
    assert image.mode == "RGB"
    assert image.getpixel((100, 100)) == (255, 0, 0) and image.getpixel((400, 100)) == (255, 255, 255)


def test_damaged_page_among_others(tmp_path):
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(3, 4, 5), PAGE, b"null", PAGE)
    pages = list(iter_pages(path))
    assert [page.image is None for page in pages] == [False, True, False] and count_pages(path).total == 3
    assert isinstance(pages[1].error, PageError) and f"{path}, page 2 is damaged" in str(pages[1].error)


def encrypted(path: Path) -> Path:
    lock = b"<< /Filter /Standard /V 1 /R 2 /O <" + b"41" * 32 + b"> /U <" + b"42" * 32 + b"> /P -4 >>"
    return write(path, CATALOG, pages_object(3), PAGE, lock, trailer=b"/Encrypt 4 0 R /ID [<00> <00>]")


def locked(path: Path) -> Path:
    lock = b"<< /Filter /Unheard.Of /V 1 /R 2 >>"
    return write(path, CATALOG, pages_object(3), PAGE, lock, trailer=b"/Encrypt 4 0 R /ID [<00> <00>]")


def cut(path: Path) -> Path:
    whole = write(path, CATALOG, pages_object(3), PAGE)
    whole.write_bytes(whole.read_bytes()[:120])
    return whole


def junk(path: Path) -> Path:
    path.write_bytes(b"%PDF-1.7\n" + bytes(range(256)) * 4)
    return path


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (encrypted, "is encrypted and needs a password"),
        (locked, "is protected in a way that PDFium does not know"),
        (lambda path: write(path, CATALOG, pages_object()), "has no pages"),
        (cut, "is damaged, or cut short"),
        (junk, "is damaged, or cut short"),
    ],
    ids=["encrypted", "locked", "empty", "cut", "junk"],
)
def test_document_that_cannot_be_opened(tmp_path, make, said):
    path = make(tmp_path / "a.pdf")
    (page,) = iter_pages(path)
    assert page.image is None and said in str(page.error) and str(path) in str(page.error)
    assert count_pages(path).total == 1
    with pytest.raises(PageError, match=said):
        load_image(path)


@pytest.mark.parametrize("make", [encrypted, cut])
def test_document_whose_name_is_not_utf_8(tmp_path, make):
    (page,) = iter_pages(make(tmp_path / "a\udcff.pdf"))
    assert page.image is None and str(page.source) in str(page.error)


def test_page_too_small_names_a_dpi_that_works(tmp_path):
    stamp = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 3 3] >>"
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(3), stamp)
    (page,) = iter_pages(path, dpi=72)
    assert "is 3 x 3 pixels" in str(page.error)
    higher = int(str(page.error).split("--dpi ")[1].split()[0])
    assert load_image(path, dpi=higher).size == (8, 8)


def test_page_beyond_the_limit_names_a_dpi_that_works(tmp_path):
    poster = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 14400 14400] >>"
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(3, 4), poster, PAGE)
    first, second = iter_pages(path, max_pixels=20_000_000)
    assert "40,000 x 40,000 = 1,600,000,000 pixels and the limit is 20,000,000" in str(first.error)
    assert second.error is None
    lower = int(str(first.error).split("--dpi ")[1].split()[0])
    first, _ = iter_pages(path, max_pixels=20_000_000, dpi=lower)
    assert first.error is None and first.image.width * first.image.height <= 20_000_000


@pytest.mark.parametrize("dpi", [0, -1, 5, 100_000, True, "200", float("nan")])
def test_bad_dpi(tmp_path, dpi):
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(3), PAGE)
    with pytest.raises(FastOCRError, match="dpi is"):
        iter_pages(path, dpi=dpi)


def test_long_document_is_drawn_page_by_page(tmp_path, monkeypatch):
    drawn = []
    read = pdf.PdfDocument.read
    monkeypatch.setattr(pdf.PdfDocument, "read", lambda self, index: drawn.append(index) or read(self, index))
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(*range(3, 503)), *[PAGE] * 500)
    assert count_pages(path).total == 500 and drawn == []
    pages = iter_pages(path, dpi=72)
    assert [next(pages).index for _ in range(3)] == [1, 2, 3] and drawn == [0, 1, 2]
    (last,) = iter_pages(path, dpi=72, pages="500")
    assert last.index == 500 and last.image is not None and drawn[-1] == 499


def test_scanned_pages(tmp_path):
    scans = [Image.new("RGB", (100, 80), colour) for colour in ("red", "lime", "blue")]
    scans[0].save(tmp_path / "a.pdf", save_all=True, append_images=scans[1:], quality=100)
    centres = [page.image.getpixel((100, 80)) for page in iter_pages(tmp_path / "a.pdf")]
    for centre, colour in zip(centres, [(255, 0, 0), (0, 255, 0), (0, 0, 255)], strict=True):
        assert centre == pytest.approx(colour, abs=4)


def test_every_page_of_a_long_scan_is_itself(tmp_path):
    scans = [Image.new("L", (40, 30), 4 * page) for page in range(60)]
    scans[0].save(tmp_path / "a.pdf", save_all=True, append_images=scans[1:], quality=100)
    centres = [page.image.getpixel((20, 15))[0] for page in iter_pages(tmp_path / "a.pdf", dpi=72)]
    assert centres == pytest.approx([4 * page for page in range(60)], abs=1)


def test_file_that_vanishes_between_pages(tmp_path):
    path = write(tmp_path / "a.pdf", CATALOG, pages_object(*range(3, 43)), *[PAGE] * 40)
    pages = iter_pages(path, dpi=72)
    next(pages)
    path.unlink()
    rest = list(pages)
    assert [page.index for page in rest] == list(range(2, 41)) and all(page.image for page in rest)
