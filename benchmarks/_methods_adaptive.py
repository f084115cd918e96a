"""Beyond the paper: a fixation as large as the page needs it, in place of a fixed share."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fastocr_trt.export.fixation_method import Fixation, largest
from fastocr_trt.export.masked_reading import Batch, View
from fastocr_trt.fixation import FixationPolicy


class FixedShare(Fixation):
    """FastOCR with a fixation of keep * rows on average, to the fraction: what adaptive readings are compared with.

    Steps take turns between the whole numbers on either side: rounding up would give a fixation of two rows a third
    more than it is compared at.
    """

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._rows = self.policy.keep * batch.visual_length.double()

    def columns(self, layer: int, view: View) -> Tensor | None:
        if layer == 0:
            so_far, then = (torch.floor(self._rows * n + 1e-9) for n in (self._steps, self._steps + 1))
            self._sizes = (then - so_far).long()
        return super().columns(layer, view)


class CoveredMass(Fixation):
    """At each focal layer the fewest rows that hold `covered` of its visual mass, per KV head.

    least, most: bounds of a fixation, as shares of the page's visual rows. Where the gaze is sharp this reads less
    than a fixed share, where it is spread more. A graph of static shapes takes `most` rows and masks the rest.
    """

    def __init__(self, policy: FixationPolicy, covered: float, least: float = 0.005, most: float = 0.25) -> None:
        super().__init__(policy)
        self.covered, self.least, self.most = covered, least, most
        self.name = f"covered mass {covered:.0%}"

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._bounds = [(batch.visual_length * share).ceil().long() for share in (self.least, self.most)]

    def select(self, mass: Tensor) -> Tensor:
        if not self.policy.per_kv_head:
            mass = mass.sum(1, keepdim=True).expand_as(mass)
        mass = mass.masked_fill(~self._batch.visual_valid()[:, None], 0.0)
        ordered = mass.sort(dim=-1, descending=True).values
        before = ordered.cumsum(-1) - ordered
        count = (before < self.covered * mass.sum(-1, keepdim=True)).sum(-1)
        least, most = (bound[:, None] for bound in self._bounds)
        return _largest_each(mass, count.clamp(least, most), self._batch)


class Widening(Fixation):
    """A fixed share, `factor` times as large for a step once the carried fixation has lost the place.

    Tested at the first focal layer of each step: where less than `trusted` of its visual mass lies on the fixation
    that the step began with, the gaze has jumped (another column, another line). Selections from there until the next
    step's test are wide.
    """

    def __init__(self, policy: FixationPolicy, trusted: float, factor: float = 4.0) -> None:
        super().__init__(policy)
        self.trusted, self.factor = trusted, factor
        self.name = f"widened {factor:g}x below {trusted:.0%}"

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._narrow = self._sizes
        self._broad = torch.minimum((self._narrow * self.factor).long(), batch.visual_length)

    def columns(self, layer: int, view: View) -> Tensor | None:
        if layer == self.policy.focal_layers[0]:
            mass = view.visual_mass()
            covered = (mass * self._fixation).sum((1, 2)) / mass.sum((1, 2)).clamp(min=1e-12)
            self._sizes = torch.where(covered < self.trusted, self._broad, self._narrow)
        return super().columns(layer, view)


def at_keep(policy: FixationPolicy, keep: float) -> FixationPolicy:
    """The policy at this keep, with no floor in tokens: so that shares compare."""
    return replace(policy, keep=keep, min_tokens=1)


def _largest_each(mass: Tensor, count: Tensor, batch: Batch) -> Tensor:
    """As `largest`, with a count [B,KV] for each KV head."""
    pages, heads, rows = mass.shape
    padded = mass.masked_fill(~batch.visual_valid()[:, None], -1.0)
    return largest(padded.view(pages * heads, 1, rows), count.reshape(-1)).view_as(mass)
