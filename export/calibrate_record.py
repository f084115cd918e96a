"""Record dense decoding: each page's visual mass and the importance of each layer, a step at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor, nn

from ..calibration import MassRecorder
from .masked_reading import Dense, MaskedReader, Reading, View


class DenseRecording:
    """Feeds a MassRecorder per page while they are read together; hooks are on the decoder within the `with` block.

    A page that has ended is recorded no further. Memory: one step's mass, [L,B,KV,Nv] in float32.
    """

    def __init__(self, reader: MaskedReader, recorders: Sequence[MassRecorder]) -> None:
        self._layers = reader.language_model.layers
        self._recorders = recorders
        self._mass: list[Tensor | None] = [None] * len(self._layers)
        self._importance: list[Tensor | None] = [None] * len(self._layers)
        self._hidden: Tensor | None = None  # of the layer at hand: layers run one after another
        self._lengths: list[int] = []

    def __enter__(self) -> DenseRecording:
        self._hooks = []
        for number, layer in enumerate(self._layers):
            self._hooks.append(layer.register_forward_pre_hook(self._before_layer, with_kwargs=True))
            self._hooks.append(layer.self_attn.register_forward_hook(self._after_attention(number)))
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def watch(self, layer: int, view: View) -> None:
        """One layer's attention at a decode step, for `MaskedReader.read`."""
        self._mass[layer] = view.visual_mass() / view.weights().shape[2]
        self._lengths = view.batch.visual_length.tolist()

    def advance(self, active: Tensor) -> None:
        """The step is over; active [B] bool: pages that took it. For `MaskedReader.read`."""
        mass = torch.stack(self._mass).cpu().numpy()
        importance = torch.stack(self._importance).cpu().numpy()
        for b in active.nonzero()[:, 0].tolist():
            self._recorders[b].step(mass[:, b, :, : self._lengths[b]], importance[:, b])

    def _before_layer(self, layer: nn.Module, args: tuple, kwargs: dict) -> None:
        self._hidden = args[0] if args else kwargs["hidden_states"]

    def _after_attention(self, number: int):
        def hook(module: nn.Module, args: tuple, output: tuple) -> None:
            if output[0].shape[1] == 1:  # a decode step
                before = self._hidden[:, 0].float()
                after = before + output[0][:, 0].float()
                self._importance[number] = 1 - torch.cosine_similarity(before, after, dim=-1)

        return hook


def read_dense(
    reader: MaskedReader,
    images: Sequence[Image.Image],
    prompt: str,
    max_new_tokens: int,
    keeps: tuple[float, ...],
    min_tokens: int,
    progress,
) -> list[tuple[Reading, MassRecorder]]:
    """Read pages (RGB) together, densely; each page's reading, and its record over its own decode steps.

    progress(count): tokens written so far.
    """
    recorders = [MassRecorder(reader.num_layers, keeps, min_tokens) for _ in images]
    steps = 0
    with DenseRecording(reader, recorders) as recording:

        def advance(active: Tensor) -> None:
            nonlocal steps
            recording.advance(active)
            steps += 1
            progress(steps)

        readings = reader.read(images, prompt, Dense(), max_new_tokens, watch=recording.watch, advance=advance)
    return list(zip(readings, recorders, strict=True))
