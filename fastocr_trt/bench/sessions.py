"""Sessions for measuring: made-up prompts, and caches that are filled as if a prompt had been read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from ..manifest import Manifest, VisionShape
from ..runtime.buffers import NUMPY_TYPES
from ..runtime.cache import BANKS, TwoBankCache
from ..runtime.onnxruntime_session import OnnxRuntimeSession
from ..runtime.prompt import Chunk, PromptTokens


class FilledSession(OnnxRuntimeSession):
    """A decoder session that starts from caches of random rows, as if a prompt had been read. On the CPU only."""

    def share(self, other: FilledSession) -> None:
        """Use `other`'s graphs, and its caches with whatever rows they hold; call it before the first `fill`."""
        self._graphs, self._inputs, self._outputs = other._graphs, other._inputs, other._outputs
        self._cache = other._cache

    def share_graphs(self, other: FilledSession) -> None:
        """Use `other`'s graphs, with caches of its own."""
        self._graphs, self._inputs, self._outputs = other._graphs, other._inputs, other._outputs

    def fill(self, visual_rows: int, text_rows: int, num_fixations: int, batch: int = 1) -> None:
        """Begin `batch` pages whose prompts have `visual_rows` and `text_rows` rows, the last one fed by a real step,
        which leaves a fixation of `num_fixations` rows and the first token."""
        shape, dtype = self.manifest.decoder, NUMPY_TYPES[self.manifest.dtype]
        self.begin(np.zeros((1, shape.hidden_size), dtype), np.full(batch, num_fixations, np.int64))
        source = np.random.default_rng(0)
        rows = {"visual": visual_rows, "text": text_rows}
        for bank in BANKS:
            kind = bank.split("_")[0]
            size = (1, shape.num_key_value_heads, rows[kind], shape.head_dim)
            content = source.standard_normal(size, np.float32).astype(dtype)
            for layer in range(shape.num_layers):
                self._cache.array(layer, bank)[:, :, : rows[kind]] = content
            self._cache.touch(kind, rows[kind])
        self._visual_length = np.full(batch, visual_rows)
        self._text_length = np.full(batch, text_rows - 1)
        last = np.full((3, batch, 1), visual_rows + text_rows)
        self.finish_prefill(np.zeros((batch, 1), np.int64), last)

    def rewind(self, text_rows: int) -> None:
        """Forget all text rows but the first `text_rows`: the next step finds as many as the first one did."""
        step = self._steps[self._turn]
        self._text_length = np.full(len(self._text_length), text_rows)
        step["text_length"].write(self._text_length)
        step["text_valid"].write(self._text_length[:, None] + 1)

    def step_values(self) -> dict[str, object]:
        """OrtValue of every input that a decode step takes at this point, but for the caches."""
        now = self._steps[self._turn]
        buffers = {**now, **self._visual, **self._fixations, "active": self._active}
        buffers["text_slots"] = self._slots(int(self._text_length.max()) + 1)
        return {name: buffer.value for name, buffer in buffers.items()}

    @property
    def cache(self) -> TwoBankCache:
        return self._cache


def filled_session(
    directory: Path, threads: int, visual_rows: int, text_rows: int, num_fixations: int, **capacities: int
) -> FilledSession:
    """A FilledSession on an engine directory; `capacities` replace the manifest's (the graphs do not know them)."""
    manifest = Manifest.read(directory)
    limits = dataclasses.replace(manifest.capacities, **capacities)
    session = FilledSession(directory, dataclasses.replace(manifest, capacities=limits), "cpu", threads)
    session.fill(visual_rows, text_rows, num_fixations)
    return session


def made_up_prompt(visual_tokens: int, text_tokens: int, first_visual: int = 0) -> PromptTokens:
    """Half of the text before the page, half behind it; every text token is number 0.

    first_visual: where the page's rows start in the batch's visual_embeds.
    """
    before = text_tokens // 2
    ids = [np.zeros(before), -1 - first_visual - np.arange(visual_tokens), np.zeros(text_tokens - before)]
    chunks, position = [], 0
    for kind, part in zip(("text", "visual", "text"), ids, strict=True):
        positions = np.tile(np.arange(position, position + len(part)), (3, 1))
        chunks.append(Chunk(kind, part.astype(np.int64), positions))
        position += len(part)
    return PromptTokens(chunks, position, position)


def made_up_image(visual_tokens: int, vision: VisionShape) -> tuple[np.ndarray, tuple[int, int]]:
    """pixel_values [patches, width] float32 of random patches, and the grid in patches: as near to a square as
    `visual_tokens` divides."""
    rows = next(n for n in range(int(visual_tokens**0.5), 0, -1) if visual_tokens % n == 0)
    merge = vision.spatial_merge_size
    grid = (visual_tokens // rows * merge, rows * merge)
    width = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    pixels = np.random.default_rng(0).standard_normal((grid[0] * grid[1], width), np.float32)
    return pixels, grid
