"""Baselines that decide by what was attended so far, or by no attention at all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from _methods import Evicted, sizes
from torch import Tensor

from fastocr_trt.export.masked_reading import Batch, View


@dataclass
class SnapKV(Evicted):
    """Eviction after prefill by the votes of the prompt's last rows, pooled (SnapKV, arXiv 2404.14469).

    Per layer and KV head. observe: rows that may vote; those after the page do. pool: neighbours in raster order.
    """

    keep: float
    observe: int = 32
    pool: int = 7
    name = "eviction after prefill (SnapKV)"

    @property
    def window(self) -> int:
        return self.observe

    def prefill(self, layer: int, weights: Tensor) -> None:
        votes = self.prompt_mass(weights)
        pooled = torch.nn.functional.max_pool1d(votes, self.pool, 1, self.pool // 2)
        self._kept[layer] = self.top(pooled + 1e-6 * votes)  # the row's own vote settles ties within a pool


@dataclass
class FastV(Evicted):
    """Pruning after an early layer, by the last prompt row's attention there (FastV, arXiv 2403.06764).

    Layers before `first` see the whole page; all others see one set of rows, by the mean over the heads of layer
    first - 1. FastV prunes prefill too; here prefill is dense, which is in its favour.
    """

    keep: float
    first: int = 2
    name = "pruning after an early layer (FastV)"
    window = 1

    def prefill(self, layer: int, weights: Tensor) -> None:
        if layer == self.first - 1:
            votes = self.prompt_mass(weights).sum(1, keepdim=True)
            self._chosen = self.top(votes)

    def columns(self, layer: int, view: View) -> Tensor | None:
        return None if layer < self.first else view.columns(self._chosen)


@dataclass
class H2O(Evicted):
    """Eviction during decode: the row with the least accumulated mass goes for good (H2O, arXiv 2306.14048).

    The cache has a fixed size, so each token that is written displaces one visual row per layer and KV head. H2O's
    recent rows are text here, all of which stays. expected: tokens that a page is thought to have; the cache is as
    large as makes the mean over that many steps `keep`. Before the first step all rows are ranked by the prompt's mass.
    """

    keep: float
    expected: int
    name = "heavy hitters (H2O)"
    window = 32

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._mass: dict[int, Tensor] = {}
        self._room = sizes(batch, self.keep) + self.expected // 2

    def prefill(self, layer: int, weights: Tensor) -> None:
        self._mass[layer] = self.prompt_mass(weights)

    def columns(self, layer: int, view: View) -> Tensor | None:
        if layer == 0:
            self._room = (self._room - 1).clamp(min=0)
        gone = ~self._kept[layer] if layer in self._kept else torch.zeros_like(self._mass[layer], dtype=torch.bool)
        kept = self._kept[layer] = self.top(self._mass[layer].masked_fill(gone, -1.0), self._room)
        columns = view.columns(kept)
        seen = view.scores().masked_fill(~columns[:, :, None], float("-inf")).softmax(-1)
        self._mass[layer] += seen[..., self._batch.visual].sum(2)
        return columns


@dataclass
class Window(Evicted):
    """The first rows and the last, in raster order, the same at every step (StreamingLLM, arXiv 2309.17453)."""

    keep: float
    sinks: int = 4
    name = "sinks and window (StreamingLLM)"

    def columns(self, layer: int, view: View) -> Tensor | None:
        rows = torch.arange(self._batch.visual.stop - self._batch.visual.start, device=self._sizes.device)
        sinks = self._sizes.clamp(max=self.sinks)
        last = rows >= (self._batch.visual_length - (self._sizes - sinks))[:, None]
        return view.columns(((rows < sinks[:, None]) | last)[:, None] & self._batch.visual_valid()[:, None])


@dataclass
class RandomRows(Evicted):
    """Rows drawn anew at every step and layer, by seed: what any rows at all are worth."""

    keep: float
    seed: int = 0
    name = "random rows"

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._source = torch.Generator().manual_seed(self.seed)

    def columns(self, layer: int, view: View) -> Tensor | None:
        kv_heads = view.scores().shape[1]
        width = self._batch.visual.stop - self._batch.visual.start
        # Rows first, so that a page draws the same whatever it is padded to; every page of a batch draws alike.
        drawn = torch.rand(width, kv_heads, generator=self._source).T.to(self._sizes.device)
        return view.columns(self.top(drawn.expand(len(self._sizes), -1, -1)))
