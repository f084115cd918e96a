"""A stand-in for the engine and small inputs, shared by the tests of the commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

from PIL import Image

from fastocr_trt.errors import PageError
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.runtime.results import ParseResult, Timings

Outcome = Callable[[int], "ParseResult | BaseException"]


def result(
    text: str = "some text", finish_reason: str = "stop", resized: bool = False, sure: float | None = None
) -> ParseResult:
    """A page as an engine gives it back."""
    timings = Timings(preprocess=0.1, vision=0.2, prefill=0.3, first_token=0.6, decode=2.0, total=2.6, decode_steps=8)
    return ParseResult(text, list(range(9)), finish_reason, timings, 64, 0.5, resized, sure)


@dataclass
class FakeStream:
    """A page's text in one piece."""

    result: ParseResult

    def __iter__(self):
        yield self.result.text


@dataclass
class FakeEngine:
    """Reads its n-th page as `outcome(n)`: a result, or an exception to raise. Remembers the options it was given."""

    outcome: Outcome
    max_batch: int = 1
    calls: list[dict] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    pages: int = 0

    @property
    def manifest(self):
        return SimpleNamespace(
            model={"family": "qwen2_5_vl", "source": "fake"},
            dtype="fp32",
            weights=None,
            policy=FixationPolicy(focal_layers=(2, 5)),
            capacities=SimpleNamespace(max_visual_tokens=768, max_text_tokens=1024, max_batch=self.max_batch),
            prompt=SimpleNamespace(default="OCR:\n"),
        )

    def stream(self, image, progress=None, **options) -> FakeStream:
        if progress:
            progress(1, 2)
        return FakeStream(self._read(options))

    def parse_batch(self, images, **options) -> list[ParseResult]:
        self.batches.append(len(images))
        before = self.pages
        try:
            return [self._read(options) for _ in images]
        except PageError:
            self.pages = before  # the command reads them again, one by one
            raise

    def _read(self, options: dict) -> ParseResult:
        self.calls.append(options)
        outcome = self.outcome(self.pages)
        self.pages += 1
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def blank(path: Path, size: tuple[int, int] = (56, 56)) -> Path:
    """A white page at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "white").save(path)
    return path


def tiff(path: Path, pages: int) -> Path:
    """A TIFF of several white pages."""
    first, *rest = [Image.new("RGB", (56, 56), "white") for _ in range(pages)]
    first.save(path, save_all=True, append_images=rest)
    return path
