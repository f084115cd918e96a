"""FastOCR's own `Method`: the policy's fixations, as masks."""

from __future__ import annotations

import torch
from torch import Tensor

from ..fixation import FixationPolicy
from .masked_reading import Batch, View


class Fixation:
    """Dense, focal and gathered layers by the policy; the last prompt row leaves the first fixation.

    keep: in place of the policy's.
    """

    window = 1
    passes = 1

    def __init__(self, policy: FixationPolicy, keep: float | None = None) -> None:
        self.policy = policy
        self.keep = keep
        self.name = "FastOCR"

    def begin(self, batch: Batch) -> None:
        self.policy.check(batch.num_layers)
        sizes = [self.policy.num_fixations(int(n), self.keep) for n in batch.visual_length]
        self._sizes = torch.tensor(sizes, device=batch.visual_length.device)
        self._batch = batch
        self._steps = 0

    def prefill(self, layer: int, weights: Tensor) -> None:
        if layer == self.policy.focal_layers[-1]:
            self._fixation = self.select(weights[..., -1, self._batch.visual].sum(2))

    def columns(self, layer: int, view: View) -> Tensor | None:
        if layer == 0:
            self._steps += 1
        kind = self.policy.kind(layer)
        refresh = self.policy.refresh_every
        if kind == "focal":
            self._fixation = self.select(view.visual_mass())
        if kind != "gathered" or (refresh and self._steps % refresh == 0):
            return None
        return view.columns(self._fixation)

    def select(self, mass: Tensor) -> Tensor:
        """[B,KV,Nv] bool: the heaviest rows of mass [B,KV,Nv], as many as each page has a right to."""
        if not self.policy.per_kv_head:
            mass = mass.sum(1, keepdim=True).expand_as(mass)
        return largest(mass.masked_fill(~self._batch.visual_valid()[:, None], -1.0), self._sizes)


def largest(mass: Tensor, sizes: Tensor) -> Tensor:
    """Bool like mass [B,KV,Nv]: the sizes[b] largest of the last axis, ties to the lower place."""
    order = mass.sort(dim=-1, descending=True, stable=True).indices
    ranks = torch.empty_like(order).scatter_(
        -1, order, torch.arange(mass.shape[-1], device=mass.device).expand_as(order)
    )
    return ranks < sizes[:, None, None]
