"""Collects the trace of a batch while it is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from ..manifest import ImageProcessing, Manifest, VisionShape
from .decode import PageState
from .gaze_guard import GazeGuard
from .preprocess import PreparedImage
from .text import Detokenizer, special_ids
from .trace import Trace, TracedImage

if TYPE_CHECKING:
    from .trace_session import TracingSession

MOST_PLACES = 256
"""Of a larger fixation the heaviest rows are kept: what lies beyond them weighs next to nothing."""


class TraceRecorder:
    """`record` after every step of the batch, `trace` at the end.

    prepared: the images of each page; num_fixations [B]: each page's k. guard: end a page whose gaze and text go round
    (see GazeGuard), as the loop guard does where the text alone does.
    """

    def __init__(
        self,
        manifest: Manifest,
        session: TracingSession,
        prepared: Sequence[Sequence[PreparedImage]],
        num_fixations: Sequence[int],
        guard: bool = True,
    ) -> None:
        self._session = session
        self._layers = session.traced_layers
        self._per_kv_head = manifest.policy.per_kv_head
        self._places = [min(count, MOST_PLACES) for count in num_fixations]
        self._images, self._pictures = [], []
        for images in prepared:
            firsts = np.cumsum([0, *(image.visual_tokens for image in images)])
            self._images.append(
                tuple(_traced(image, int(first), manifest.vision) for image, first in zip(images, firsts, strict=False))
            )
            self._pictures.append(tuple(picture(image, manifest.image_processing, manifest.vision) for image in images))
        self._steps: list[list[tuple[np.ndarray, ...]]] = [[] for _ in prepared]
        self._guards = [GazeGuard() if guard else None for _ in prepared]

    def record(self, pages: Sequence[PageState]) -> None:
        """The last call's masses, for the pages that it gave a token. A page in a loop is cut and ended."""
        grown = [b for b, page in enumerate(pages) if len(page.token_ids) > len(self._steps[b])]
        if not grown:
            return
        masses = self._session.focal_masses()
        for b in grown:
            rows, mass = heaviest(masses[b], self._places[b], self._per_kv_head)
            page_mass = masses[b].sum(-1).astype(np.float16)
            self._steps[b].append(
                (np.float16(pages[b].log_probabilities[-1]), rows, mass.astype(np.float16), page_mass)
            )
            if (guard := self._guards[b]) is None or not pages[b].active:
                continue
            if (kept := guard.push(pages[b].token_ids[-1], masses[b])) is not None:
                del pages[b].token_ids[kept:]
                pages[b].finish_reason = "loop"

    def trace(self, page: int, state: PageState, text: str, mode: str, tokenizer: Any) -> Trace:
        """The trace of page number `page` of the batch; tokens that the loop guard cut off are not in it."""
        count = len(state.token_ids)
        kv_heads, layers, k = self._session.manifest.decoder.num_key_value_heads, len(self._layers), self._places[page]
        steps = self._steps[page][:count]
        empty = (np.zeros(0, np.float16), np.zeros((0, layers, kv_heads, k), np.int32))
        columns = [np.stack(column) for column in zip(*steps, strict=True)] or [
            *empty,
            empty[1].astype(np.float16),
            np.zeros((0, layers, kv_heads), np.float16),
        ]
        return Trace(
            text=text,
            mode=mode,
            layers=tuple(self._layers),
            images=self._images[page],
            token_ids=np.array(state.token_ids, np.int32),
            spans=token_spans(state.token_ids, tokenizer),
            log_probabilities=columns[0],
            rows=columns[1],
            mass=columns[2],
            page_mass=columns[3],
            pictures=self._pictures[page],
            finish_reason=state.finish_reason or "length",
        )


def heaviest(masses: np.ndarray, places: int, per_kv_head: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """masses [F,KV,V] to (rows int32, mass float32) [F,KV,places]: rows by falling mass, ties to the lower one.

    A page of fewer rows leaves places unused: -1, and 0. per_kv_head False: all heads fixate what they weigh together.
    """
    weighed = masses if per_kv_head else np.broadcast_to(masses.sum(1, keepdims=True), masses.shape)
    rows = np.full((*masses.shape[:2], places), -1, np.int32)
    mass = np.zeros(rows.shape, np.float32)
    count = min(places, masses.shape[2])
    if count:
        rows[..., :count] = np.argsort(-weighed, axis=-1, kind="stable")[..., :count]
        mass[..., :count] = np.take_along_axis(masses, rows[..., :count].astype(np.int64), axis=-1)
    return rows, mass


def token_spans(token_ids: Sequence[int], tokenizer: Any) -> np.ndarray:
    """[T,2] int32: which characters of the decoded text each token wrote; see `Trace.spans`."""
    spans = np.zeros((len(token_ids), 2), np.int32)
    detokenizer, special = Detokenizer(tokenizer), special_ids(tokenizer)
    length = 0
    waiting: list[int] = []  # tokens whose text is not out yet
    for number, token in enumerate(token_ids):
        piece = detokenizer.push(token)
        if token in special:
            spans[number] = length
            continue
        waiting.append(number)
        if piece:
            spans[waiting] = (length, length + len(piece))
            length += len(piece)
            waiting = []
    spans[waiting] = (length, length + len(detokenizer.finish()))
    return spans


def picture(image: PreparedImage, processing: ImageProcessing, shape: VisionShape) -> Image.Image:
    """The RGB image that `preprocess` cut into patches, put together again: what the model saw."""
    size, merge = shape.patch_size, shape.spatial_merge_size
    patches = image.pixel_values.reshape(-1, 3, shape.temporal_patch_size, size, size)[:, :, 0]
    mean = np.array(processing.image_mean, np.float32)[:, None, None]
    std = np.array(processing.image_std, np.float32)[:, None, None]
    levels = np.rint((patches * std + mean) / processing.rescale_factor).clip(0, 255).astype(np.uint8)
    blocks = levels.reshape(image.grid_h // merge, image.grid_w // merge, merge, merge, 3, size, size)
    return Image.fromarray(blocks.transpose(0, 2, 5, 1, 3, 6, 4).reshape(image.grid_h * size, image.grid_w * size, 3))


def _traced(image: PreparedImage, first_row: int, shape: VisionShape) -> TracedImage:
    merge = shape.spatial_merge_size
    return TracedImage(
        image.original_size,
        image.size,
        image.grid_w // merge,
        image.grid_h // merge,
        merge * shape.patch_size,
        first_row,
    )
