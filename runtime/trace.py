"""What the model looked at while it wrote a page, token by token, and the file it is kept in: see docs/trace.md."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..atomic import whole_file
from ..counts import plural
from ..errors import FastOCRError

SCHEMA = "fastocr-trace/1"
JPEG_QUALITY = 88
_ARRAYS = {
    "token_ids": (1, np.int32),
    "spans": (2, np.int32),
    "log_probabilities": (1, np.float16),
    "rows": (4, np.int32),
    "mass": (4, np.float16),
    "page_mass": (3, np.float16),
}
"""Array -> its axes, the first of which is the token, and its type."""
_RANGES = {"log_probabilities": (-np.inf, 0), "mass": (0, 1), "page_mass": (0, 1)}
_ROUNDING = 0.01  # that float16 and sums of softmax may go beyond them
_LARGEST = 2**31 - 1
_MOST_BYTES = 2 * 2**30  # unpacked; several times what the longest text leaves, where a small file can claim any size


@dataclass(frozen=True)
class TracedImage:
    """One image of the page's prompt. Sizes are (width, height) in pixels.

    size: as it was given; resized: as the model saw it; columns, rows: its visual tokens across and down, each a square
    of cell pixels of the resized image; first_row: where its visual tokens begin in the visual bank, in raster order.
    """

    size: tuple[int, int]
    resized: tuple[int, int]
    columns: int
    rows: int
    cell: int
    first_row: int

    @property
    def visual_tokens(self) -> int:
        return self.columns * self.rows


@dataclass(frozen=True)
class Trace:
    """T tokens, F focal layers, KV key/value heads, k places for the heaviest rows.

    text: the page's text. token_ids [T] int32. spans [T,2] int32: text[start:end] that a token wrote, empty where it
    wrote none; tokens that wrote one character together share it. log_probabilities [T] float16: of the token.
    layers: the focal layers, F of them. rows [T,F,KV,k] int32: the fixation, rows of the visual bank by falling mass,
    -1 where unused. mass [T,F,KV,k] float16: softmax mass of each, mean over the query heads of the KV head.
    page_mass [T,F,KV] float16: that of the whole page. pictures: the images as the model saw them, RGB.
    source, page: the file and its page from 1, where known. `save` escapes what is not UTF-8 in the name.
    """

    text: str
    mode: str
    layers: tuple[int, ...]
    images: tuple[TracedImage, ...]
    token_ids: np.ndarray
    spans: np.ndarray
    log_probabilities: np.ndarray
    rows: np.ndarray
    mass: np.ndarray
    page_mass: np.ndarray
    pictures: tuple[Image.Image, ...] = field(repr=False)
    finish_reason: str = "stop"
    source: str | None = None
    page: int | None = None

    @property
    def visual_tokens(self) -> int:
        return sum(image.visual_tokens for image in self.images)

    def save(self, path: Path) -> None:
        """Write the file whole: one that is there stays until then. OSError where it cannot be written."""
        source = self.source and self.source.encode("utf-8", "backslashreplace").decode("utf-8")
        facts = {
            "schema": SCHEMA,
            "text": self.text,
            "mode": self.mode,
            "layers": list(self.layers),
            "images": [asdict(image) for image in self.images],
            "finish_reason": self.finish_reason,
            "source": source,
            "page": self.page,
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode("ascii"), np.uint8)
        for number, picture in enumerate(self.pictures):
            arrays[f"picture_{number}"] = np.frombuffer(_jpeg(picture), np.uint8)
        with whole_file(path) as part, part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a file that `save` wrote. FastOCRError where it is missing, foreign, damaged or of another version."""
        try:
            facts, content = _unpack(path)
        except FileNotFoundError:
            raise FastOCRError(f"there is no trace at {path}; `fastocr-parse --trace DIR` writes them") from None
        except IsADirectoryError:
            raise FastOCRError(f"{path} is a folder, not a trace; name a file in it") from None
        except PermissionError as error:
            raise FastOCRError(f"cannot read {path}: {error.strerror}") from None
        except Exception as error:  # bytes of anything: zip, zlib and npy each have kinds of errors of their own
            raise FastOCRError(f"{path} is not a trace of fastocr-parse, or is damaged ({_line(error)})") from None
        schema = facts.pop("schema", None) if isinstance(facts, dict) else None
        if schema != SCHEMA:
            raise FastOCRError(f"{path} has the format {schema!r} and this fastocr-trt reads {SCHEMA!r}; trace again")
        try:
            return _build(facts, content)
        except Exception as error:  # facts of any shape, and pictures that Pillow refuses in ways of its own
            raise FastOCRError(f"{path} is a damaged trace ({_line(error)}); trace the page again") from None


def _unpack(path: str | Path) -> tuple[Any, dict[str, np.ndarray]]:
    """The facts and all arrays of a file; any error where it is no such file."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError("it is a pipe, a socket or a device")  # to open one may wait for ever
    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no NumPy archive")
    with np.load(path, allow_pickle=False) as stored:
        if (size := sum(entry.file_size for entry in stored.zip.infolist())) > _MOST_BYTES:
            raise ValueError(f"it claims to hold {plural(size, 'byte')}, and a trace has at most {_MOST_BYTES:,}")
        if "facts" not in stored.files:
            raise ValueError("it has no `facts`")
        content = {name: stored[name] for name in stored.files}
    return json.loads(content["facts"].tobytes()), content


def _build(facts: dict[str, Any], content: dict[str, np.ndarray]) -> Trace:
    """Any error where the parts do not fit each other: what is drawn and measured relies on it that they do."""
    images = tuple(
        TracedImage(**{**each, "size": tuple(each["size"]), "resized": tuple(each["resized"])})
        for each in facts.pop("images")
    )
    pictures = tuple(
        Image.open(io.BytesIO(content[f"picture_{number}"].tobytes())).convert("RGB") for number in range(len(images))
    )
    layers = tuple(facts.pop("layers"))
    trace = Trace(layers=layers, images=images, pictures=pictures, **facts, **{name: content[name] for name in _ARRAYS})
    _check_facts(trace)
    _check_images(trace)
    _check_arrays(trace)
    return trace


def _check_facts(trace: Trace) -> None:
    strings = (trace.text, trace.mode, trace.finish_reason, "" if trace.source is None else trace.source)
    page = 1 if trace.page is None else trace.page
    if not all(isinstance(value, str) for value in strings) or not _whole(*trace.layers) or not _whole(page, least=1):
        raise ValueError("text, mode, finish_reason, source, layers or page is of another type, or no such number")
    if any("\ud800" <= character <= "\udfff" for value in strings for character in value):
        raise ValueError("text, mode, finish_reason or source has half a character (a lone surrogate)")


def _check_images(trace: Trace) -> None:
    first = 0
    for image, picture in zip(trace.images, trace.pictures, strict=True):
        if not _whole(*image.size, *image.resized, image.columns, image.rows, image.cell, least=1):
            raise ValueError("an image's size is no size")
        if image.resized != (image.columns * image.cell, image.rows * image.cell):
            raise ValueError("an image's visual tokens do not cover it")
        if not _whole(image.first_row) or image.first_row != first:
            raise ValueError(f"an image's visual tokens do not begin at row {first:,}")
        if len(image.size) != 2 or picture.size != image.resized:
            raise ValueError("a picture has another size than its image")
        first += image.visual_tokens
    if not first:
        raise ValueError("there is no image")


def _check_arrays(trace: Trace) -> None:
    tokens, rows = len(trace.token_ids), trace.rows
    for name, (axes, kind) in _ARRAYS.items():
        array = getattr(trace, name)
        if array.ndim != axes or len(array) != tokens or array.dtype != kind:
            raise ValueError(f"{name} is {array.dtype} {list(array.shape)} for {plural(tokens, 'token')}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} has numbers that are not finite")
        least, most = _RANGES.get(name, (-np.inf, np.inf))
        if array.size and (array.min() < least or array.max() > most + _ROUNDING):
            raise ValueError(f"{name} has numbers outside {least:g} to {most:g}")
    if rows.shape != trace.mass.shape or rows.shape[:3] != trace.page_mass.shape:
        raise ValueError("rows, mass and page_mass differ in shape")
    if len(trace.layers) != rows.shape[1] or trace.spans.shape != (tokens, 2):
        raise ValueError("layers or spans do not fit")
    if rows.size and (rows.min() < -1 or rows.max() >= trace.visual_tokens):
        raise ValueError(f"a row lies outside the page's {plural(trace.visual_tokens, 'visual token')}")
    starts, ends = trace.spans.T
    if (starts < 0).any() or (ends < starts).any() or (ends > len(trace.text)).any():
        raise ValueError(f"a span lies outside the text's {plural(len(trace.text), 'character')}")


def _whole(*values: Any, least: int = 0) -> bool:
    return all(
        isinstance(value, int) and not isinstance(value, bool) and least <= value <= _LARGEST for value in values
    )


def _jpeg(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
