"""Options of one call to read pages."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FastOCRError
from ..fixation import check_keep
from .session import MODES, Mode


@dataclass(frozen=True)
class Reading:
    """Options of one call. Raises FastOCRError for a value out of range."""

    prompt: str | None = None
    mode: Mode = "fast"
    keep: float | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    resize_to_fit: bool = True
    loop_guard: bool = True

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise FastOCRError(f"mode is {self.mode!r}; choose one of {list(MODES)}")
        if self.keep is not None:
            check_keep(self.keep)
        if self.max_new_tokens is not None and (not isinstance(self.max_new_tokens, int) or self.max_new_tokens < 1):
            raise FastOCRError(f"max_new_tokens is {self.max_new_tokens!r}; it must be a whole number of at least 1")
