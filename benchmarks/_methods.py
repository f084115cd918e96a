"""The ways of reading that are compared, each a small `Method` of `fastocr_trt.export.masked_reading`.

All text (the prompt and what has been written) stays visible in every one of them, and prefill is dense, so that they
differ in one thing only: which visual rows a decode step sees. `keep` is the share of the page's visual rows that a
layer which does not see all of them sees.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastocr_trt.errors import FastOCRError
from fastocr_trt.export.fixation_method import largest
from fastocr_trt.export.masked_reading import Batch, View


def sizes(batch: Batch, keep: float) -> Tensor:
    """[B] whole visual rows that `keep` (0 to 1) is of each page; at least one where keep is above 0."""
    counts = [math.ceil(keep * n - 1e-9) for n in batch.visual_length.tolist()]
    return torch.tensor(counts, device=batch.visual_length.device)


def keep_for(reads: float, whole: int, num_layers: int) -> float:
    """The keep at which mean visual reads are `reads` (0 to 1) where `whole` of the layers see the whole page.

    FastOCRError where those layers alone read more.
    """
    if reads < whole / num_layers:
        raise FastOCRError(
            f"mean visual reads of {reads:.1%} cannot be had with {whole} of {num_layers} layers on the whole page, "
            f"which alone read {whole / num_layers:.1%}; ask for more reads"
        )
    return 1.0 if whole == num_layers else min(1.0, (reads * num_layers - whole) / (num_layers - whole))


class Evicted:
    """Common to methods that choose visual rows per layer, and see all of them in the layers before `first`."""

    window = 0
    passes = 1
    first = 0
    name = "evicted"
    keep: float

    def begin(self, batch: Batch) -> None:
        self._batch = batch
        self._sizes = sizes(batch, self.keep)
        self._kept: dict[int, Tensor] = {}

    def prefill(self, layer: int, weights: Tensor) -> None: ...

    def columns(self, layer: int, view: View) -> Tensor | None:
        return None if layer < self.first else view.columns(self._kept[layer])

    def top(self, votes: Tensor, count: Tensor | None = None) -> Tensor:
        """Bool like votes [B,KV,Nv]: each page's rows with the most votes, padding never before a real row."""
        votes = votes.masked_fill(~self._batch.visual_valid()[:, None], float("-inf"))
        return largest(votes, self._sizes if count is None else count)

    def prompt_mass(self, weights: Tensor) -> Tensor:
        """[B,KV,Nv]: softmax mass of the prompt rows after the page, of weights [B,KV,G,window,columns]."""
        tail = min(weights.shape[3], self._batch.prompt - self._batch.visual.stop)
        return weights[..., -tail:, self._batch.visual].sum((2, 3))
