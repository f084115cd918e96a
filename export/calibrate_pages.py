"""Pages to calibrate on, with their texts where there are any: files, or the demo's generated pages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from PIL import Image

from ..demo.pages import SEEDS, generate_page
from ..errors import FastOCRError
from ..runtime.documents import Page, count_pages, iter_pages, list_files

MAX_ASPECT_RATIO = 200  # longer strips are refused by the checkpoint's image processor


class CalibrationPage(NamedTuple):
    """name: for people; digest: of the image's pixels, the page's name in the record; text: what it says, if known."""

    name: str
    digest: str
    text: str | None
    image: Image.Image


class Pages(Protocol):
    """Pages that can be gone through again and again, one image in memory at a time."""

    about: dict
    """What goes into the policy's record: where the pages come from."""
    left_out: int
    """Pages that could not be read, of those that were gone through so far."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[CalibrationPage]: ...


@dataclass(frozen=True)
class GeneratedPages:
    """`count` pages of the seeds kept for calibration, the layouts in turn; their texts are known."""

    count: int = 24
    layouts: Sequence[str] = ("mono",)
    visual_tokens: int = 768
    left_out: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.count > len(SEEDS["calibration"]):
            raise FastOCRError(
                f"{self.count} pages are too many; {len(SEEDS['calibration'])} seeds are kept for calibration"
            )
        generate_page(SEEDS["calibration"][0], self.layouts[0], self.visual_tokens)  # tells a size that is none

    @property
    def about(self) -> dict:
        seeds = SEEDS["calibration"][: self.count]
        return {
            "source": "generated",
            "layouts": list(self.layouts),
            "visual_tokens": self.visual_tokens,
            "seeds": [seeds[0], seeds[-1]],
        }

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[CalibrationPage]:
        for number, seed in enumerate(SEEDS["calibration"][: self.count]):
            layout = self.layouts[number % len(self.layouts)]
            page = generate_page(seed, layout, self.visual_tokens)
            yield CalibrationPage(f"{layout} {seed}", digest(page.image), page.text, page.image)


class FolderPages:
    """The images, PDFs and TIFFs of a folder.

    The text of `scan.png` is `scan.txt`, that of page 3 of a `scan.pdf` of several pages `scan-3.txt`, in `texts`
    or, where that is None, beside the pages: UTF-8, with a byte order mark or without. White space at the ends of
    lines and of the text does not count, since a page does not show it. dpi: resolution at which PDF pages are drawn.
    warn: told of a page that is left out and of texts that belong to no page, once. Raises FastOCRError where there is
    no page, a text cannot be read, or none in `texts` belongs to a page.
    """

    def __init__(self, folder: Path, texts: Path | None, dpi: float, warn: Callable[[str], None]) -> None:
        if not folder.is_dir():
            raise FastOCRError(f"--pages {folder} is not a folder; give a folder of images, PDFs or TIFFs")
        self._files = list_files(folder)
        if not self._files:
            raise FastOCRError(f"--pages {folder} holds no page: none of its files is an image, a PDF or a TIFF")
        if texts is not None and not texts.is_dir():
            raise FastOCRError(f"--texts {texts} is not a folder; give a folder with a NAME.txt for each page")
        self._dpi = dpi
        self._warn = warn
        self._told: set[str] = set()
        self._left_out: set[tuple[Path, int]] = set()  # file and page: the pages are gone through several times
        counts = {file: count_pages(file) for file in self._files}
        self._count = sum(count.total for count in counts.values())
        names = [
            _text_name(file, index, count.readable)
            for file, count in counts.items()
            for index in range(1, count.readable + 1)
        ]
        self._texts = self._read_texts(names, folder if texts is None else texts, texts is not None)
        self.readable = len(names)
        self.with_text = sum(name in self._texts for name in names)

    @property
    def left_out(self) -> int:
        return len(self._left_out)

    @property
    def about(self) -> dict:
        return {"source": "files", "files": [path.name for path in self._files], "dpi": self._dpi}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CalibrationPage]:
        for page in iter_pages(self._files, dpi=self._dpi):
            for note in page.notes:
                self._tell(note)
            if page.error is not None:
                self._leave_out(page, page.error)
                continue
            width, height = page.image.size
            if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
                self._leave_out(page, f"{page.name}: {width} x {height} pixels is too long a strip")
                continue
            text = self._texts.get(_text_name(page.source, page.index, page.count))
            yield CalibrationPage(page.name, digest(page.image), text, page.image)

    def _read_texts(self, names: Sequence[str], folder: Path, asked: bool) -> dict[str, str]:
        """The texts in `folder` that are of pages, by name. asked: the user said that there are some."""
        there = sorted(path.name for path in folder.iterdir() if path.suffix == ".txt")
        wanted = set(names)
        strays = [name for name in there if name not in wanted]
        found = {name: _read_text(folder / name) for name in there if name in wanted}
        some = ", ".join(strays[:3]) + (f" and {len(strays) - 3} more" if len(strays) > 3 else "")
        if asked and not found:
            raise FastOCRError(
                f"no text in {folder} belongs to a page{f' ({some})' if strays else ''}: name them like the pages, "
                f"{names[0] if names else _text_name(self._files[0], 1, 1)} for {self._files[0].name}"
            )
        if strays:
            self._tell(f"{folder}: no page for {some}; NAME.txt goes with NAME.png, NAME-3.txt with page 3 of several")
        return found

    def _leave_out(self, page: Page, why: object) -> None:
        self._left_out.add((page.source, page.index))
        self._tell(f"{why}; the page is left out")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._warn(text)


def digest(image: Image.Image) -> str:
    """A name for an image's pixels: 32 hex characters."""
    return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()[:32]


def _text_name(source: Path, index: int, count: int) -> str:
    return f"{source.stem}.txt" if count == 1 else f"{source.stem}-{index}.txt"


def _read_text(path: Path) -> str:
    """What a page says; FastOCRError where `path` holds no text."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise FastOCRError(f"{path} is not UTF-8 text; save it as UTF-8 or take it away") from None
    except OSError as error:
        raise FastOCRError(
            f"{path} cannot be read as a page's text ({error.strerror or error}); give a UTF-8 file or take it away"
        ) from None
    return "\n".join(line.rstrip() for line in text.split("\n")).rstrip()
