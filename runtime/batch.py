"""One batch of pages, from images to results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..counts import plural
from ..errors import EngineError, PageError
from ..manifest import Manifest
from .decode import PageState, decode
from .documents import load_image
from .loop_guard import LoopGuard
from .options import Reading
from .prefill import prefill
from .preprocess import PreparedImage, plan, preprocess
from .prompt import PromptTokens, build_prompt
from .results import ParseResult
from .sampling import Sampler
from .session import Session
from .stopwatch import Stopwatch
from .trace_recorder import TraceRecorder
from .vision_layout import vision_layout

if TYPE_CHECKING:
    from PIL.Image import Image

    PageImage = Image | str | Path
    PageImages = PageImage | Sequence[PageImage]


class BatchRun:
    """`steps` reads the batch, `results` is what it read. Between two steps `pages` may be looked at.

    progress(done, total) is called in prompt tokens during prefill. first_page: number of the batch's first page in the
    caller's job, which sampling draws by.
    """

    def __init__(
        self,
        manifest: Manifest,
        session: Session,
        tokenizer: Any,
        images: Sequence[PageImages],
        reading: Reading,
        progress: Callable[[int, int], None] | None = None,
        first_page: int = 0,
    ) -> None:
        self.manifest = manifest
        self.session = session
        self.tokenizer = tokenizer
        self.reading = reading
        self.pages: list[PageState] = []
        self._images = images
        self._progress = progress
        self._first_page = first_page
        self._watch = Stopwatch()
        self._recorder: TraceRecorder | None = None

    def steps(self) -> Iterator[int]:
        """Read the batch; yields the number of decode steps so far after every token."""
        manifest, session, reading, watch = self.manifest, self.session, self.reading, self._watch
        sampler = Sampler(reading.temperature, reading.top_p, reading.seed, self._first_page)
        watch.start()
        self._prepared = [prepare_images(manifest, page, reading) for page in self._images]
        prompts = [tokenize(manifest, self.tokenizer, images, reading.prompt) for images in self._prepared]
        self.pages = [PageState(_limit(manifest, p, reading), guard=self._guard()) for p in prompts]
        self.visual_tokens = [sum(i.visual_tokens for i in images) for images in self._prepared]
        watch.mark("preprocess")
        embeds = [_encode(session, manifest, image) for images in self._prepared for image in images]
        watch.mark("vision")
        policy = manifest.policy
        k = [policy.num_fixations(v, reading.keep) for v in self.visual_tokens]
        session.begin(np.concatenate(embeds), np.array(k, np.int64))
        offsets = np.cumsum([0, *self.visual_tokens[:-1]]).tolist()
        if hasattr(session, "focal_masses"):
            self._recorder = TraceRecorder(manifest, session, self._prepared, k, reading.loop_guard)
        pad = manifest.generation.pad_token_id
        prefill(session, prompts, offsets, manifest.capacities.prefill_chunk, pad, self._progress)
        watch.mark("prefill")
        stops = manifest.generation.stop_token_ids
        for steps in decode(session, self.pages, stops, reading.mode, sampler, policy.refresh_every):
            self._decode_steps = steps
            if self._recorder is not None:
                self._recorder.record(self.pages)
            watch.mark("decode")
            yield steps

    def _guard(self) -> LoopGuard | None:
        return LoopGuard(self.tokenizer.decode) if self.reading.loop_guard else None

    def results(self) -> list[ParseResult]:
        timings = self._watch.timings(self._decode_steps)
        policy, layers = self.manifest.policy, self.manifest.decoder.num_layers
        results = []
        for number, (page, images, visual) in enumerate(
            zip(self.pages, self._prepared, self.visual_tokens, strict=True)
        ):
            reads = 1.0
            if self.reading.mode == "fast":
                reads = policy.mean_visual_reads(visual, layers, self.reading.keep)
                if policy.refresh_every and (steps := page.chosen - 1) > 0:
                    dense = steps // policy.refresh_every / steps
                    reads += dense * (1 - reads)
            text = self.tokenizer.decode(page.token_ids, skip_special_tokens=True)
            shrunk = any(i.resized_to_fit for i in images)
            trace = None
            if self._recorder is not None:
                trace = self._recorder.trace(number, page, text, self.reading.mode, self.tokenizer)
            sure = page.mean_probability
            results.append(
                ParseResult(text, page.token_ids, page.finish_reason, timings, visual, reads, shrunk, sure, trace)
            )
        return results


def prepare_images(manifest: Manifest, page: PageImages, reading: Reading) -> list[PreparedImage]:
    """The images of one prompt, resized and cut into patches; together they fit the engine's visual bank."""
    images = list(page) if isinstance(page, (list, tuple)) else [page]
    if not images:
        raise PageError("a page has no image; give at least one")
    processing, shape = manifest.image_processing, manifest.vision
    limit = manifest.capacities.max_visual_tokens
    pictures = [load_image(image) for image in images]
    # The sizes alone tell whether they fit, before any pixel is touched.
    total = sum(plan(*p.size, processing, shape, limit, reading.resize_to_fit).visual_tokens for p in pictures)
    if total > limit:
        if not reading.resize_to_fit:
            raise PageError(
                f"a page of {plural(len(images), 'image')} takes {plural(total, 'visual token')} and the engine holds "
                f"{limit:,}; give fewer images, smaller ones, or export with a larger --max-visual-tokens"
            )
        limit //= len(images)
    return [preprocess(picture, processing, shape, limit, reading.resize_to_fit) for picture in pictures]


def tokenize(manifest: Manifest, tokenizer: Any, images: Sequence[PreparedImage], prompt: str | None) -> PromptTokens:
    """The prompt of one page; PageError where its text does not fit the engine's text bank."""
    tokens = build_prompt(
        manifest.prompt,
        tokenizer,
        [i.visual_tokens for i in images],
        prompt,
        [(i.grid_h, i.grid_w) for i in images],
        manifest.vision.spatial_merge_size,
    )
    text = _text_rows(tokens)
    limit = manifest.capacities.max_text_tokens
    if text >= limit:
        raise PageError(
            f"the prompt takes {plural(text, 'text token')} and the engine holds {limit:,} with the answer; "
            "shorten it, or export with a larger --max-text-tokens"
        )
    return tokens


def _encode(session: Session, manifest: Manifest, image: PreparedImage) -> np.ndarray:
    layout = vision_layout(image.grid_h, image.grid_w, manifest.vision)
    embeds = session.encode_image(
        image.pixel_values, layout.rotary_positions, layout.window_rows, layout.window_inverse
    )
    if not np.isfinite(embeds).all():
        raise EngineError(
            "the vision graph gave numbers that are not finite on a page of "
            f"{plural(image.visual_tokens, 'visual token')}; the engine is {manifest.dtype}: export with "
            "--dtype bf16 or fp32"
        )
    return embeds


def _text_rows(prompt: PromptTokens) -> int:
    return sum(len(c.input_ids) for c in prompt.chunks if c.kind == "text")


def _limit(manifest: Manifest, prompt: PromptTokens, reading: Reading) -> int:
    """Tokens that may be written: what the text bank has left, or less where the caller said so."""
    room = manifest.capacities.max_text_tokens - _text_rows(prompt)
    return min(room, reading.max_new_tokens or room)
