"""Options of one call to read pages."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..counts import check_count
from ..errors import FastOCRError
from ..fixation import check_keep
from .session import MODES, Mode

MAX_THREADS = 1024


@dataclass(frozen=True)
class Reading:
    """Options of one call. Raises FastOCRError for a value out of range.

    prompt: the user's words in place of the engine's default. keep: in place of the policy's. max_new_tokens: limit
    per page, None for what the engine holds. temperature, top_p, seed: see Sampler. resize_to_fit: make a page
    smaller that has more visual tokens than the engine holds, instead of refusing it. loop_guard: end a page whose
    text goes round in circles.
    """

    prompt: str | None = None
    mode: Mode = "fast"
    keep: float | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    resize_to_fit: bool = True
    loop_guard: bool = True

    @classmethod
    def of(cls, prompt: str | None, mode: Mode, options: dict[str, Any]) -> Reading:
        """From a call's keyword arguments; FastOCRError names an unknown one."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise FastOCRError(f"unknown options {unknown}; known are {known}")
        return cls(prompt, mode, **options)

    def __post_init__(self) -> None:
        if self.prompt is not None and not isinstance(self.prompt, str):
            raise FastOCRError(f"prompt is a {type(self.prompt).__name__}; it must be a str, or None for the default")
        if self.mode not in MODES:
            raise FastOCRError(f"mode is {self.mode!r}; choose one of {list(MODES)}")
        if self.keep is not None:
            check_keep(self.keep)
        if self.max_new_tokens is not None:
            check_count(self.max_new_tokens, "max_new_tokens")
        for name in ("resize_to_fit", "loop_guard"):
            if not isinstance(getattr(self, name), bool):
                raise FastOCRError(f"{name} is {getattr(self, name)!r}; it must be True or False")
