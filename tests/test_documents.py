"""Files and folders to pages: order, laziness, page numbers, and what a damaged one among others does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastocr_trt.errors import FastOCRError, PageError
from fastocr_trt.runtime import documents, images
from fastocr_trt.runtime.documents import PageCount, count_pages, iter_pages, list_files, load_image
from fastocr_trt.runtime.page_range import PageRange


def save(path: Path, grey: int = 255, size: tuple[int, int] = (40, 30), **options) -> Path:
    Image.new("L", size, grey).save(path, **options)
    return path


def multipage(path: Path, greys: list[int]) -> Path:
    """A TIFF or PDF whose pages are told apart by their grey."""
    first, *rest = [Image.new("L", (40, 30), grey) for grey in greys]
    first.save(path, save_all=True, append_images=rest)
    return path


def greys(pages) -> list[int | None]:
    return [page.image and page.image.getpixel((20, 15))[0] for page in pages]


def test_several_kinds_in_the_order_given(tmp_path):
    paths = [save(tmp_path / f"b.{kind}", grey) for grey, kind in enumerate(["png", "tif", "bmp"], 100)]
    paths += [multipage(tmp_path / "a.tiff", [10, 20]), multipage(tmp_path / "z.pdf", [0, 255])]
    pages = list(iter_pages(paths))
    assert greys(pages) == [100, 101, 102, 10, 20, 0, 255]
    assert [page.index for page in pages] == [1, 1, 1, 1, 2, 1, 2]
    assert [page.count for page in pages] == [1, 1, 1, 2, 2, 2, 2]
    assert pages[0].name == str(paths[0]) and pages[4].name == f"{paths[3]}, page 2"
    assert count_pages(paths).total == 7
    assert all(page.image.mode == "RGB" and page.error is None for page in pages)


@pytest.mark.parametrize("kind", ["jpg", "webp"])
def test_lossy_kinds(tmp_path, kind):
    assert greys(iter_pages(save(tmp_path / f"page.{kind}", 100))) == [pytest.approx(100, abs=3)]


def test_one_path_needs_no_list(tmp_path):
    path = save(tmp_path / "page.png")
    assert count_pages(str(path)).total == 1 and [page.source for page in iter_pages(path)] == [path]


def test_content_counts_and_not_the_name(tmp_path):
    multipage(tmp_path / "really.pdf", [1, 2]).rename(tmp_path / "really.png")
    save(tmp_path / "picture.png").rename(tmp_path / "picture.pdf")
    assert count_pages([tmp_path / "really.png", tmp_path / "picture.pdf"]).total == 3
    assert all(page.image for page in iter_pages([tmp_path / "really.png", tmp_path / "picture.pdf"]))


def test_folder_in_natural_order_and_what_was_skipped(tmp_path):
    for name in ["scan10.png", "scan2.PNG", "Scan1.png", "b.tif", ".hidden.png"]:
        save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no page")
    (tmp_path / "deeper.png").mkdir()
    pages = list(iter_pages(tmp_path))
    assert [page.source.name for page in pages] == ["b.tif", "Scan1.png", "scan2.PNG", "scan10.png"]
    assert len(pages[0].notes) == 1 and not any(page.notes for page in pages[1:])
    assert "notes.txt" in pages[0].notes[0] and "deeper.png" in pages[0].notes[0] and ".hidden" not in pages[0].notes[0]
    assert count_pages([tmp_path]).total == 4


def test_folder_without_pages(tmp_path):
    (tmp_path / "notes.txt").write_text("no page")
    (page,) = iter_pages([tmp_path])
    assert page.image is None and "holds no page" in str(page.error) and count_pages(tmp_path).total == 1


def test_damaged_files_among_good_ones(tmp_path):
    (tmp_path / "2.png").write_bytes(b"")
    (tmp_path / "3.png").write_text("this is a text")
    (tmp_path / "4.png").write_bytes(save(tmp_path / "5.png", 50, (400, 300)).read_bytes()[:100])
    save(tmp_path / "1.png", 40)
    pages = list(iter_pages(tmp_path))
    assert greys(pages) == [40, None, None, None, 50]
    for page, said in zip(pages[1:4], ["empty (0 bytes)", "not an image", "damaged or cut short"], strict=True):
        assert said in str(page.error) and str(page.source) in str(page.error)
        assert isinstance(page.error, PageError) and "\n" not in str(page.error)
    assert count_pages(tmp_path) == PageCount(total=5, readable=3)  # one's damage shows when it is decoded


def test_pages_are_read_one_at_a_time(tmp_path, monkeypatch):
    read = []

    class Watched(images.ImageDocument):
        def read(self, index):
            read.append(index)
            return super().read(index)

    monkeypatch.setattr(documents, "ImageDocument", Watched)
    path = multipage(tmp_path / "long.tif", [1] * 20)
    pages = iter_pages([path, tmp_path / "long.tif"])
    assert read == []
    next(pages), next(pages)
    assert read == [0, 1]
    read.clear()
    assert count_pages(path).total == 20 and read == []


def test_pages_of_each_file(tmp_path):
    tiff, pdf = multipage(tmp_path / "a.tif", [1, 2, 3, 4]), multipage(tmp_path / "b.pdf", [0, 255])
    pages = list(iter_pages([tiff, pdf], pages="2-3, 1,2"))
    assert [(page.source.name, page.index) for page in pages] == [
        ("a.tif", 1),
        ("a.tif", 2),
        ("a.tif", 3),
        ("b.pdf", 1),
        ("b.pdf", 2),
        ("b.pdf", 3),
    ]
    assert greys(pages) == [1, 2, 3, 0, 255, None]
    assert "has 2 pages, and --pages asks for page 3" in str(pages[-1].error)
    assert count_pages([tiff, pdf], "2-3,1,2") == PageCount(total=6, readable=5)


def test_pages_beyond_the_end_alone(tmp_path):
    (page,) = iter_pages(save(tmp_path / "one.png"), pages="7-9")
    assert page.image is None and "has 1 page, and --pages asks for pages 7 to 9" in str(page.error)


@pytest.mark.parametrize(
    "pages", ["", "x", "1-2-3", "0", "0-3", "-", "3-1", "1,,2", "1.5", "-0", "9" * 60, "\N{ARABIC-INDIC DIGIT ONE}"]
)
def test_bad_pages(tmp_path, pages):
    path = save(tmp_path / "one.png")
    with pytest.raises(FastOCRError, match="--pages is"):
        iter_pages(path, pages=pages)
    with pytest.raises(FastOCRError, match="--pages is"):
        count_pages(path, pages)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(0, 4)), min_size=1, max_size=4), st.integers(1, 10))
def test_page_range_is_the_set_of_its_pages(ranges, count):
    text = ",".join(str(first) if not more else f"{first}-{first + more}" for first, more in ranges)
    wanted = {page for first, more in ranges for page in range(first, first + more + 1)}
    found, missing = PageRange.parse(text).select(count)
    assert list(found) == sorted(page for page in wanted if page <= count)
    beyond = {page for page in wanted if page > count}
    assert bool(missing) == bool(beyond) and (not beyond or missing[-1] == max(beyond))


@pytest.mark.parametrize(("text", "found", "missing"), [("3-", [3, 4], ()), ("-2", [1, 2], ()), ("5-", [], (5,))])
def test_open_ranges(text, found, missing):
    selected = PageRange.parse(text).select(4)
    assert list(selected[0]) == found and selected[1] == missing


def test_usage_mistakes_are_said_before_any_page(tmp_path):
    path = save(tmp_path / "one.png")
    with pytest.raises(FastOCRError, match="no page to read"):
        iter_pages([])
    with pytest.raises(FastOCRError, match=r"absent\.png.*does not exist"):
        iter_pages([path, tmp_path / "absent.png"])
    for options in [{"dpi": 0}, {"dpi": 9999}, {"dpi": float("nan")}, {"max_pixels": 0}, {"max_pixels": 1.5}]:
        with pytest.raises(FastOCRError, match=next(iter(options))):
            iter_pages(path, **options)


def test_load_image(tmp_path):
    path = save(tmp_path / "one.png", 7)
    assert load_image(path).getpixel((0, 0)) == load_image(str(path)).getpixel((0, 0)) == (7, 7, 7)
    given = Image.open(path)
    assert load_image(given).getpixel((0, 0)) == (7, 7, 7) and given.mode == "L"
    with pytest.raises(FastOCRError, match="has 2 pages"):
        load_image(multipage(tmp_path / "two.tif", [1, 2]))
    with pytest.raises(PageError, match="does not exist"):
        load_image(tmp_path / "absent.png")
    with pytest.raises(PageError, match="is a folder"):
        load_image(tmp_path)
    with pytest.raises(FastOCRError, match="not int"):
        load_image(3)


def test_folder_gives_its_regular_files_alone(tmp_path):
    os.mkfifo(tmp_path / "1.png")
    (tmp_path / "aside").mkdir()
    target = save(tmp_path / "aside" / "page.png", 20)
    (tmp_path / "2.png").symlink_to(target)
    (page,) = iter_pages(tmp_path)
    assert greys([page]) == [20] and "skipped 1.png" in page.notes[0]
    assert list_files(tmp_path) == [tmp_path / "2.png"] and count_pages(tmp_path).total == 1


def test_fifo_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "1.png")
    pages = list(iter_pages([tmp_path / "1.png", save(tmp_path / "2.png", 20)]))
    assert greys(pages) == [None, 20]
    assert isinstance(pages[0].error, PageError) and "is a pipe, socket or device" in str(pages[0].error)
    assert count_pages(tmp_path / "1.png").total == 1


def test_name_too_long_does_not_exist(tmp_path):
    with pytest.raises(FastOCRError, match="does not exist: check the name"):
        iter_pages(tmp_path / ("x" * 300))


def test_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = save(tmp_path / "locked.png")

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    (page,) = iter_pages(path)
    assert page.image is None and "permission denied" in str(page.error)
