"""Relatives of FastOCR: what its parts are worth. Their prefill and their selection are FastOCR's own."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fastocr_trt.export.fixation_method import Fixation
from fastocr_trt.export.masked_reading import Batch, View
from fastocr_trt.fixation import FixationPolicy


class NoReuse(Fixation):
    """No fixation goes from step to step: layers before the first focal layer are dense.

    As in TidalDecode (arXiv 2410.05076), whose first layers see everything before one selects.
    """

    def __init__(self, policy: FixationPolicy) -> None:
        before = {*range(policy.focal_layers[0]), *policy.dense_layers}
        super().__init__(replace(policy, dense_layers=tuple(sorted(before))))
        self.name = f"no reuse between steps (focal {', '.join(map(str, policy.focal_layers))})"


class TwoPass(Fixation):
    """An upper bound: each step runs twice, and the first, dense pass leaves this step's own fixation.

    What reuse between steps could at best be: the layers before the first focal layer then see what the last focal
    layer would select now, not what it selected a token ago. The first pass reads the whole page.
    """

    passes = 2

    def __init__(self, policy: FixationPolicy) -> None:
        super().__init__(policy)
        self.name = "two-pass oracle"

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self._looking = False

    def columns(self, layer: int, view: View) -> Tensor | None:
        if layer == 0:
            self._looking = not self._looking
        if not self._looking:
            return super().columns(layer, view)
        if layer == self.policy.focal_layers[-1]:
            self._fixation = self.select(view.visual_mass())
        return None


class SingleLayer(Fixation):
    """One layer selects for all others, as LessIsMore (arXiv 2508.07101) unifies selection; the policy's first does."""

    def __init__(self, policy: FixationPolicy) -> None:
        super().__init__(replace(policy, focal_layers=policy.focal_layers[:1]))
        self.name = f"single selection layer ({policy.focal_layers[0]})"


class EvenlySpaced(Fixation):
    """As many focal layers as the policy has, spread over the depth: what choosing them is worth.

    As OmniKV (ICLR 2025) spaces its filter layers.
    """

    def __init__(self, policy: FixationPolicy, num_layers: int) -> None:
        count = len(policy.focal_layers)
        focal = tuple(sorted({(i + 1) * num_layers // (count + 1) for i in range(count)}))
        dense = tuple(i for i in policy.dense_layers if i not in focal)
        super().__init__(replace(policy, focal_layers=focal, dense_layers=dense))
        self.name = f"evenly spaced focal layers ({', '.join(map(str, focal))})"


class TextWindow(Fixation):
    """FastOCR that also forgets: of what was written, each step sees the last `window_of_text` tokens alone.

    The prompt's text stays visible, as the sinks of StreamingLLM (arXiv 2309.17453) do.
    """

    def __init__(self, policy: FixationPolicy, window_of_text: int) -> None:
        super().__init__(policy)
        self.window_of_text = window_of_text
        self.name = f"window of {window_of_text} written tokens"

    def columns(self, layer: int, view: View) -> Tensor | None:
        columns = super().columns(layer, view)
        if columns is None:
            columns = view.columns(self._batch.visual_valid()[:, None])
        end = columns.shape[-1]
        columns[..., self._batch.prompt : max(self._batch.prompt, end - self.window_of_text)] = False
        return columns
