"""The rendered chat template to token ids and M-RoPE positions, in chunks that are all text or all visual."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import FastOCRError
from ..manifest import Prompt
from .text import special_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLACEHOLDER = "{prompt}"
_plain_text = threading.Lock()  # the tokenizer's switch is for all its callers


@dataclass(frozen=True)
class Chunk:
    """One stretch of the prompt. input_ids [n] int64; position_ids [3,n] int64 (temporal, height, width).

    A visual chunk is one image: its ids are -1 - row, row counting the visual tokens of the prompt's images from 0.
    """

    kind: Literal["text", "visual"]
    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]


@dataclass(frozen=True)
class PromptTokens:
    """A prompt: its chunks in order, their length in tokens, and the position that the first new token takes."""

    chunks: list[Chunk]
    next_position: int
    length: int


def build_prompt(
    prompt: Prompt,
    tokenizer: Tokenizer,
    visual_tokens: Sequence[int],
    user_prompt: str | None = None,
    grids: Sequence[tuple[int, int]] = (),
    merge: int = 2,
) -> PromptTokens:
    """The prompt of one page or of several images.

    visual_tokens: of each image; grids: (grid_h, grid_w) of each image in patches; merge: spatial_merge_size.
    user_prompt: the user's words in place of the default (None); "" is no words.
    Ids and positions are those of Hugging Face, but for one thing: a special token spelled out in the user's words
    (`<|im_end|>`) is taken as the characters it is made of, so that no words can end a turn or fake an image.
    Raises FastOCRError where the words are not text, or the model's prompt has no place for them.
    """
    if len(grids) != len(visual_tokens):
        raise ValueError(f"{len(visual_tokens)} images and {len(grids)} grids")
    chunks: list[Chunk] = []
    position = row = 0
    segments = _segments(prompt, len(visual_tokens), user_prompt)
    for i, parts in enumerate(segments):
        ids = _encode(tokenizer, *parts)
        if ids:
            chunks.append(Chunk("text", np.array(ids, np.int64), _text_positions(position, len(ids))))
            position += len(ids)
        if i == len(visual_tokens):
            break
        height, width = (side // merge for side in grids[i])
        if height * width != visual_tokens[i]:
            raise ValueError(f"a grid of {grids[i]} patches has {height * width} visual tokens, not {visual_tokens[i]}")
        ids = -1 - np.arange(row, row + visual_tokens[i], dtype=np.int64)
        chunks.append(Chunk("visual", ids, _visual_positions(position, height, width)))
        row += visual_tokens[i]
        position += max(height, width)
    return PromptTokens(chunks, position, sum(len(c.input_ids) for c in chunks))


def _segments(prompt: Prompt, images: int, user_prompt: str | None) -> list[tuple[str, str, str]]:
    """The text before, between and after the images, each as (template, the user's words, template)."""
    words = prompt.default if user_prompt is None else user_prompt
    before, after = (prompt.before.partition(PLACEHOLDER), prompt.after.partition(PLACEHOLDER))
    if user_prompt is not None and not (before[1] or after[1]):
        raise FastOCRError("this engine's prompt is fixed and takes no words of yours: leave the prompt out")
    head = (before[0], words if before[1] else "", before[2])
    tail = (after[0], words if after[1] else "", after[2])
    if not images:
        joined = head[2] + tail[0]
        return [(head[0], head[1], joined + tail[1] + tail[2]) if before[1] else (head[0] + joined, *tail[1:])]
    first = (*head[:2], head[2] + prompt.image_before)
    between = (prompt.image_after + prompt.image_before, "", "")
    last = (prompt.image_after + tail[0], *tail[1:])
    return [first, *[between] * (images - 1), last]


def _encode(tokenizer: Tokenizer, left: str, words: str, right: str) -> list[int]:
    """Ids of the three joined: as one text, unless the user's words bring a special token into it."""
    ids = _ids(tokenizer, left + words + right)
    if not words:
        return ids
    special = special_ids(tokenizer)
    around = _ids(tokenizer, left), _ids(tokenizer, right)
    if [i for i in ids if i in special] == [i for part in around for i in part if i in special]:
        return ids
    with _plain_text:
        tokenizer.encode_special_tokens = True
        try:
            plain = _ids(tokenizer, words)
        finally:
            tokenizer.encode_special_tokens = False
    return [*around[0], *plain, *around[1]]


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FastOCRError("the prompt is not valid Unicode text: it holds half of a surrogate pair") from None
    return tokenizer.encode(text, add_special_tokens=False).ids


def _text_positions(start: int, count: int) -> NDArray[np.int64]:
    return np.tile(np.arange(start, start + count, dtype=np.int64), (3, 1))


def _visual_positions(start: int, height: int, width: int) -> NDArray[np.int64]:
    """[3, height*width]: a still image has one temporal index; rows and columns count from it."""
    rows, columns = np.divmod(np.arange(height * width, dtype=np.int64), width)
    return np.stack([np.zeros_like(rows), rows, columns]) + start
