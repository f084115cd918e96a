"""What reading a page gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .decode import FinishReason

if TYPE_CHECKING:
    from .trace import Trace


@dataclass(frozen=True)
class Timings:
    """Seconds. Pages of one batch share vision to total, since they were read together.

    first_token: from the start to the first token (preprocess, vision and prefill).
    decode: from the first token to the last; decode_steps is the number of decoder calls in it.
    """

    preprocess: float
    vision: float
    prefill: float
    first_token: float
    decode: float
    total: float
    decode_steps: int

    @property
    def decode_tokens_per_second(self) -> float:
        """Decoder calls a second, of one page of the batch."""
        return self.decode_steps / self.decode if self.decode > 0 else 0.0


@dataclass(frozen=True)
class ParseResult:
    """One page, read.

    token_ids: the tokens of `text`, without the stop token.
    finish_reason: "stop" (the model ended the page), "length" (a limit did), "loop" (it repeated itself: the text is
        kept up to the end of the loop's first turn).
    visual_tokens: rows the page takes in the visual bank.
    mean_visual_reads: share of them that a decode step read, mean over layers and steps; 1.0 is dense.
    resized_to_fit: the page was made smaller than the model wanted, because the engine holds fewer visual tokens.
    mean_probability: the model's own for its tokens, geometric mean: a low one tells of a page that it could not read.
        None where logits stay on a GPU (all but ONNX Runtime's CPU provider), or nothing was written.
    trace: what the model looked at, where the engine was loaded with trace=True.
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    timings: Timings
    visual_tokens: int
    mean_visual_reads: float
    resized_to_fit: bool
    mean_probability: float | None = None
    trace: Trace | None = field(default=None, repr=False, compare=False)
