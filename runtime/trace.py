"""What the model looked at while it wrote a page, token by token, and the file it is kept in: see docs/trace.md."""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..errors import FastOCRError

SCHEMA = "fastocr-trace/1"
SUFFIX = ".npz"
JPEG_QUALITY = 88
_ARRAYS = {"token_ids": 1, "spans": 2, "log_probabilities": 1, "rows": 4, "mass": 4, "page_mass": 3}
"""Array -> its axes; the first one is the token."""


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
    source, page: the file and its page from 1, where known.
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
        facts = {
            "schema": SCHEMA,
            "text": self.text,
            "mode": self.mode,
            "layers": list(self.layers),
            "images": [asdict(image) for image in self.images],
            "finish_reason": self.finish_reason,
            "source": self.source,
            "page": self.page,
        }
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode("ascii"), np.uint8)
        for number, picture in enumerate(self.pictures):
            arrays[f"picture_{number}"] = np.frombuffer(_jpeg(picture), np.uint8)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                np.savez_compressed(file, **arrays)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read a file that `save` wrote. FastOCRError where it is missing, foreign, damaged or of another version."""
        try:
            with np.load(path, allow_pickle=False) as stored:
                content = {name: stored[name] for name in stored.files}
            facts = json.loads(content["facts"].tobytes())
        except FileNotFoundError:
            raise FastOCRError(f"there is no trace at {path}; `fastocr-parse --trace DIR` writes them") from None
        except IsADirectoryError:
            raise FastOCRError(f"{path} is a folder, not a trace; name a file in it") from None
        except PermissionError as error:
            raise FastOCRError(f"cannot read {path}: {error.strerror}") from None
        except (OSError, ValueError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise FastOCRError(f"{path} is not a trace of fastocr-parse, or is damaged ({_line(error)})") from None
        schema = facts.pop("schema", None) if isinstance(facts, dict) else None
        if schema != SCHEMA:
            raise FastOCRError(f"{path} has the format {schema!r} and this fastocr-trt reads {SCHEMA!r}; trace again")
        try:
            return _build(facts, content)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise FastOCRError(f"{path} is a damaged trace ({_line(error)}); trace the page again") from None


def _build(facts: dict[str, Any], content: dict[str, np.ndarray]) -> Trace:
    """ValueError, KeyError or TypeError where the parts do not fit each other."""
    images = tuple(
        TracedImage(**{**each, "size": tuple(each["size"]), "resized": tuple(each["resized"])})
        for each in facts.pop("images")
    )
    pictures = tuple(
        Image.open(io.BytesIO(content[f"picture_{number}"].tobytes())).convert("RGB") for number in range(len(images))
    )
    layers = tuple(facts.pop("layers"))
    arrays = {name: content[name] for name in _ARRAYS}
    tokens = len(arrays["token_ids"])
    for name, axes in _ARRAYS.items():
        if arrays[name].ndim != axes or len(arrays[name]) != tokens:
            raise ValueError(f"{name} is {list(arrays[name].shape)} for {tokens} tokens")
    if arrays["rows"].shape != arrays["mass"].shape or arrays["rows"].shape[:3] != arrays["page_mass"].shape:
        raise ValueError("rows, mass and page_mass differ in shape")
    trace = Trace(layers=layers, images=images, pictures=pictures, **facts, **arrays)
    text, rows = len(trace.text), trace.rows
    if not images or len(layers) != rows.shape[1] or arrays["spans"].shape != (tokens, 2):
        raise ValueError("layers, images or spans do not fit")
    if rows.size and (rows.min() < -1 or rows.max() >= trace.visual_tokens):
        raise ValueError(f"a row lies outside the page's {trace.visual_tokens} visual tokens")
    if tokens and (trace.spans.min() < 0 or trace.spans.max() > text):
        raise ValueError(f"a span lies outside the text's {text} characters")
    return trace


def _jpeg(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=JPEG_QUALITY)
    return stream.getvalue()


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
