"""What fastocr-parse delivers: one record a page, a summary at the end. docs/json_output.md describes the fields."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..counts import plural

if TYPE_CHECKING:
    from ..runtime.results import ParseResult
    from ..runtime.trace import Trace

SCHEMA = "fastocr-parse/1"
UNSURE_BELOW = 0.8
"""Mean probability under which a page is taken for badly read. The demo is above 0.9 on pages like those it learned
from and below 0.75 on others, of which it reads next to nothing."""


@dataclass(frozen=True)
class PageRecord:
    """One page as the JSON output has it. `page` counts from 1; a page that failed has `error` and no more."""

    source: str
    page: int
    text: str | None = None
    finish_reason: str | None = None
    error: str | None = None
    resized_to_fit: bool | None = None
    visual_tokens: int | None = None
    mean_visual_reads: float | None = None
    tokens: int | None = None
    mean_probability: float | None = None
    timings: dict[str, float] | None = None
    trace: str | None = None
    words: list[dict[str, Any]] | None = None

    @classmethod
    def of(cls, source: str, page: int, result: ParseResult, trace: str | None = None) -> PageRecord:
        """trace: the file of the page's trace, where one was written; then the words have their places."""
        timings = {**asdict(result.timings), "decode_tokens_per_second": result.timings.decode_tokens_per_second}
        return cls(
            source=source,
            page=page,
            text=result.text,
            finish_reason=result.finish_reason,
            resized_to_fit=result.resized_to_fit,
            visual_tokens=result.visual_tokens,
            mean_visual_reads=round(result.mean_visual_reads, 6),
            tokens=len(result.token_ids),
            mean_probability=None if result.mean_probability is None else round(result.mean_probability, 4),
            timings={name: round(value, 6) for name, value in timings.items()},
            trace=trace,
            words=None if trace is None else _words(result.trace),
        )

    @property
    def unsure(self) -> bool:
        """Whether the model took other tokens for nearly as likely as those it wrote, mean over the page."""
        return self.mean_probability is not None and self.mean_probability < UNSURE_BELOW

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        if self.trace is None:  # the fields of a page that was not traced
            del data["trace"], data["words"]
        return data


def _words(trace: Trace) -> list[dict[str, Any]]:
    from ..runtime.provenance import read_words

    words = []
    for word in read_words(trace):
        data = asdict(word)
        data["image"] += 1
        data["box"] = None if word.box is None else [round(edge, 1) for edge in word.box]
        data["confidence"], data["probability"] = round(word.confidence, 4), round(word.probability, 4)
        words.append(data)
    return words


@dataclass
class Summary:
    """Running totals over the pages delivered so far; nothing of a page's text is held."""

    pages: int = 0
    failed: int = 0
    tokens: int = 0
    visual_tokens: int = 0
    decode_steps: int = 0
    decode_seconds: float = 0.0
    reads: float = 0.0
    unsure: int = 0
    finish_reasons: Counter = field(default_factory=Counter)

    def add(self, record: PageRecord, share: int = 1) -> None:
        """Count a page; `share` is the number of pages read together with it, whose decode time is one."""
        if record.error is not None:
            self.failed += 1
            return
        self.pages += 1
        self.tokens += record.tokens
        self.visual_tokens += record.visual_tokens
        # The steps of a batch are those of its longest page; the page itself took as many as it has tokens.
        self.decode_steps += min(record.tokens, record.timings["decode_steps"])
        self.decode_seconds += record.timings["decode"] / share
        self.reads += record.mean_visual_reads
        self.finish_reasons[record.finish_reason] += 1
        self.unsure += record.unsure

    @property
    def tokens_per_second(self) -> float:
        """Tokens written a second of decoding, all pages of a batch together; preprocessing and prefill not counted."""
        return self.decode_steps / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def mean_visual_reads(self) -> float:
        """Mean over the pages read."""
        return self.reads / self.pages if self.pages else 0.0

    def to_dict(self, complete: bool) -> dict[str, Any]:
        return {
            "complete": complete,
            "pages": self.pages,
            "failed": self.failed,
            "tokens": self.tokens,
            "tokens_per_second": round(self.tokens_per_second, 3),
            "visual_tokens": self.visual_tokens,
            "mean_visual_reads": round(self.mean_visual_reads, 6),
            "finish_reasons": dict(self.finish_reasons),
            "unsure": self.unsure,
        }

    def line(self, elapsed: str) -> str:
        """The summary for people."""
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(self.finish_reasons.items()))
        failed = f", {self.failed} failed" if self.failed else ""
        unsure = f"; the reader is unsure of {plural(self.unsure, 'page')}" if self.unsure else ""
        if not self.pages:
            return f"0 pages{failed} in {elapsed}"
        return (
            f"{plural(self.pages, 'page')}{failed} in {elapsed}: {plural(self.tokens, 'token')}, "
            f"{self.tokens_per_second:.1f} tokens/s, {plural(self.visual_tokens, 'visual token')}, "
            f"a step read {self.mean_visual_reads:.1%} of them; finished by {ends}{unsure}"
        )
