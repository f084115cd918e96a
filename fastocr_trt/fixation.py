"""The policy: which layers look at the whole page, which select, and how much the others read."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Real
from typing import Any, Literal

from .counts import check_count, plural
from .errors import FastOCRError

LayerKind = Literal["dense", "focal", "gathered"]


@dataclass(frozen=True)
class FixationPolicy:
    """What each decoder layer does while decoding (FastOCR, arXiv 2605.17447).

    focal_layers: layers that attend to every visual token and select the fixation, ascending.
    dense_layers: layers that attend to every visual token and select nothing.
    keep: share of the page's visual tokens in a fixation, 0 to 1. 1 is dense attention, 0 reads text only.
    min_tokens: floor of a fixation in visual tokens, where keep is above 0.
    per_kv_head: one fixation per KV head; False shares one set, by the mass summed over the KV heads.
    refresh_every: a dense step every so many steps; 0 is never.

    Layers before the first focal layer use the fixation the previous step left (its last focal layer's).
    """

    focal_layers: tuple[int, ...]
    dense_layers: tuple[int, ...] = (0,)
    keep: float = 0.05
    min_tokens: int = 8
    per_kv_head: bool = True
    refresh_every: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "focal_layers", _layers(self.focal_layers, "focal_layers"))
        object.__setattr__(self, "dense_layers", _layers(self.dense_layers, "dense_layers"))
        check_keep(self.keep)
        if not self.focal_layers:
            raise FastOCRError("the policy has no focal layer; name at least one, for example focal_layers=[2]")
        both = sorted(set(self.focal_layers) & set(self.dense_layers))
        if both:
            raise FastOCRError(
                f"layers {both} are both focal and dense; a focal layer is dense already: take "
                "it out of dense_layers, which are [0] where they are not given"
            )
        if not isinstance(self.per_kv_head, bool):
            raise FastOCRError(f"per_kv_head is {self.per_kv_head!r}; it must be true or false")
        for name in ("min_tokens", "refresh_every"):
            object.__setattr__(self, name, check_count(getattr(self, name), name, least=0))

    def check(self, num_layers: int) -> None:
        """Raise FastOCRError if a layer lies outside a decoder of `num_layers` layers."""
        outside = [i for i in (*self.focal_layers, *self.dense_layers) if i >= num_layers]
        if outside:
            raise FastOCRError(
                f"the policy names layers {outside}, but the decoder has {plural(num_layers, 'layer')} (0 to "
                f"{num_layers - 1})"
            )

    def kind(self, layer: int) -> LayerKind:
        """What `layer` does at a decode step."""
        if layer in self.focal_layers:
            return "focal"
        return "dense" if layer in self.dense_layers else "gathered"

    def num_fixations(self, visual_tokens: int, keep: float | None = None) -> int:
        """Size k of a fixation on a page of `visual_tokens` rows: ceil(keep * rows), floored and capped."""
        keep = self.keep if keep is None else check_keep(keep)
        if keep == 0:
            return 0
        wanted = math.ceil(keep * visual_tokens - 1e-9)  # 0.07 * 100 is 7.000000000000001
        return min(visual_tokens, max(wanted, self.min_tokens))

    def mean_visual_reads(self, visual_tokens: int, num_layers: int, keep: float | None = None) -> float:
        """Share of the page's visual rows that a decode step reads, mean over all layers (0 to 1)."""
        if visual_tokens == 0:
            return 0.0
        k = self.num_fixations(visual_tokens, keep)
        whole = sum(self.kind(i) != "gathered" for i in range(num_layers))
        return (whole + (num_layers - whole) * k / visual_tokens) / num_layers

    def to_dict(self) -> dict[str, Any]:
        data = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in data.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FixationPolicy:
        if not isinstance(data, dict):
            raise FastOCRError(f"a policy must be a JSON object, not {type(data).__name__}")
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise FastOCRError(f"the policy has unknown fields {unknown}; known are {sorted(known)}")
        if "focal_layers" not in data:
            raise FastOCRError("the policy lacks focal_layers, a list of layer numbers")
        return cls(**data)

    @classmethod
    def evenly_spaced(cls, num_layers: int, **overrides: Any) -> FixationPolicy:
        """An uncalibrated start for an unknown model: layer 0 dense, about a tenth of the layers focal.

        The first focal layer sits at a third of the depth: earlier single selections are known to be weak.
        """
        if num_layers < 2:
            return cls(**{"focal_layers": (0,), "dense_layers": (), **overrides})
        count = max(1, round(num_layers / 10))
        first = max(1, num_layers // 3)
        last = num_layers - max(2, num_layers // 10)
        step = (last - first) / max(1, count - 1)
        layers = sorted({min(num_layers - 1, max(first, round(first + step * i))) for i in range(count)})
        return cls(**{"focal_layers": tuple(layers), **overrides})


def check_keep(keep: float) -> float:
    """`keep` as a float, or FastOCRError where it is not a number from 0 to 1."""
    if isinstance(keep, bool) or not isinstance(keep, Real) or not 0 <= keep <= 1:
        raise FastOCRError(f"keep is {keep!r}; it is a share of the visual tokens and must lie in 0 to 1 (5% is 0.05)")
    return float(keep)


def _layers(value: Any, name: str) -> tuple[int, ...]:
    try:
        layers = tuple(value)
    except TypeError:
        raise FastOCRError(f"{name} is {value!r}; it must be a list of layer numbers") from None
    if any(not isinstance(i, int) or isinstance(i, bool) or i < 0 for i in layers):
        raise FastOCRError(f"{name} is {list(layers)}; layer numbers are whole and start at 0")
    if len(set(layers)) != len(layers):
        raise FastOCRError(f"{name} is {list(layers)}; a layer is named twice")
    return tuple(sorted(layers))
