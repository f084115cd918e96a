"""Trace the vision tower to `vision.onnx`, with the inputs and output of docs/architecture.md.

Hugging Face computes window order, sequence lengths and splits in Python from the grid; here they are inputs, which
the host computes (`runtime/vision_layout.py`). The tower's own modules are called as they are, but for attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from . import layers
from . import vision_attention as ops
from .graph import clean
from .quiet import quiet
from .schemas import DOMAIN, OPSET, OPSET_VERSION
from .vision_bodies import Form, functions

INPUTS = ("pixel_values", "rotary_positions", "window_rows", "window_inverse")
OUTPUT = "visual_embeds"


class VisionTower(nn.Module):
    """The traced module: a Qwen2-VL or Qwen2.5-VL tower, one image at a time.

    Submodules are named so that parameter names equal the Hugging Face model's (`model.visual...`). Patches stay in
    the order of pixel_values throughout, so merged tokens leave in raster order. `blocks` are those to run.
    """

    def __init__(self, visual: nn.Module, blocks: Sequence[int]):
        super().__init__()
        self.model = nn.ModuleDict({"visual": visual})
        self.blocks = blocks
        self.kinds = block_kinds(visual.config)

    def forward(self, pixel_values: Tensor, rotary_positions: Tensor, window_rows: Tensor, window_inverse: Tensor):
        visual = self.model["visual"]
        # A convolution whose stride is its kernel is a product of the flattened patch and the flattened kernel.
        kernel = visual.patch_embed.proj.weight.flatten(1)
        hidden = nn.functional.linear(pixel_values.to(kernel.dtype), kernel, visual.patch_embed.proj.bias)
        cos, sin = self._rotary(rotary_positions, visual.blocks[0].attn.head_dim)
        for i in self.blocks:
            block = visual.blocks[i]
            windows = None if self.kinds[i] == "full" else (window_rows, window_inverse)
            hidden = torch.ops.fastocr.layer_boundary(hidden)
            hidden = hidden + _attend(block.attn, block.norm1(hidden), cos, sin, windows)
            hidden = hidden + block.mlp(block.norm2(hidden))
        return visual.merger(torch.ops.fastocr.layer_boundary(hidden))

    def _rotary(self, positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and sin [patches, 1, head_dim/2] float32: half of the pairs turn with the row, half with the column."""
        theta = self.model["visual"].config.rope_parameters["rope_theta"]
        half = head_dim // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32, device=positions.device)
        frequency = 1.0 / (theta ** (steps / half))
        angle = (positions.float().unsqueeze(-1) * frequency).flatten(1).unsqueeze(1)
        return angle.cos(), angle.sin()


def _attend(attention: nn.Module, hidden: Tensor, cos: Tensor, sin: Tensor, windows: tuple[Tensor, Tensor] | None):
    heads, scale = attention.num_heads, attention.scaling
    both, value = _cut(attention.qkv(hidden), 2 * heads * attention.head_dim)
    rotated = _rotate(both.unflatten(-1, (2 * heads, -1)), cos, sin).flatten(1)  # queries and keys alike
    query, key = _cut(rotated, heads * attention.head_dim)
    if windows is None:
        output = torch.ops.fastocr.bidirectional_attention(query, key, value, heads, scale)
    else:
        output = torch.ops.fastocr.window_attention(query, key, value, *windows, heads, scale)
    return attention.proj(output)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary in float32 on [patches, heads, head_dim]; the pairs are (d, d + head_dim/2)."""
    first, second = _cut(states.float(), states.shape[-1] // 2)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(states.dtype)


def _cut(states: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The first `width` of the last dimension, and the rest; torch.split would become an ONNX sequence instead."""
    return states[..., :width], states[..., width:]


def trace_vision(model: nn.Module, form: Form = "onnxruntime") -> ir.Model:
    """Trace the vision tower of a Hugging Face Qwen2.5-VL or Qwen2-VL model; weights are not read.

    model: a ...ForConditionalGeneration in the export dtype; its parameters may be uninitialised or on "meta".
    form: the bodies of the attention functions, see `vision_bodies.functions`.

    One block of each kind is traced, and the graph then unrolled to the tower's depth. The result's parameters are
    initializers under the model's own names, of the checkpoint's shapes: linear layers are Gemm with transB = 1, so
    nothing needs transposing; only the patch embedding's kernel passes a Reshape. They hold the model's tensors: real
    weights are there to be saved, others to be replaced.
    """
    visual = model.model.visual
    kinds = block_kinds(visual.config)
    traced_kinds = sorted(set(kinds))
    blocks = [kinds.index(kind) for kind in traced_kinds]
    tower = VisionTower(visual, blocks).eval()
    traced = _export(tower, *_example(visual))
    parameters = dict(tower.named_parameters())
    for name in parameters.keys() & traced.graph.initializers.keys():
        traced.graph.initializers[name].const_value = None  # or cleaning would read and fold small ones
    clean(traced)

    def rename(name: str, layer: int, block: int) -> str:
        return name.replace(f".blocks.{blocks[layer]}.", f".blocks.{block}.")

    layers.unroll(traced.graph, kinds, traced_kinds, rename)
    for name, initializer in traced.graph.initializers.items():
        if name in parameters:
            initializer.const_value = ir.tensor_adapters.TorchTensor(parameters[name], name=name)
    for value, shape in zip((*traced.graph.inputs, *traced.graph.outputs), _shapes(visual), strict=True):
        value.shape = ir.Shape(shape)
    for function in functions(form):
        body = ir.serde.deserialize_function(function)
        traced.functions[body.identifier()] = body
    traced.graph.opset_imports[DOMAIN] = OPSET_VERSION
    if form == "onnxruntime":
        traced.graph.opset_imports["com.microsoft"] = 1
    return traced


def block_kinds(config) -> list[str]:
    """What each block attends to: "windowed", or "full" for the whole page, which is all that Qwen2-VL has."""
    full = set(getattr(config, "fullatt_block_indexes", range(config.depth)))
    return ["full" if i in full else "windowed" for i in range(config.depth)]


def _export(tower: VisionTower, args: tuple[Tensor, ...], dynamic: tuple) -> ir.Model:
    with torch.no_grad(), quiet():
        exported = torch.export.export(tower, args, dynamic_shapes=dynamic, strict=False)
        program = torch.onnx.export(
            exported,
            args=(),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            opset_version=OPSET,
            optimize=False,
            verbose=False,
            custom_translation_table=ops.TRANSLATION_TABLE | layers.TRANSLATION_TABLE,
        )
    return program.model


def _shapes(visual: nn.Module) -> tuple[tuple[str | int, ...], ...]:
    """Symbolic shapes of the inputs in the order of INPUTS, then of the output."""
    config = visual.config
    pixels = config.in_channels * config.temporal_patch_size * config.patch_size**2
    tokens = ("visual_tokens", visual.merger.mlp[-1].out_features)
    return ("patches", pixels), ("patches", 2), ("windows", "window_patches"), ("patches",), tokens


def _example(visual: nn.Module) -> tuple[tuple[Tensor, ...], tuple[dict[int, object], ...]]:
    """Arguments to trace with, in the order of INPUTS, and which of their dimensions vary."""
    config = visual.config
    merge = config.spatial_merge_size**2
    patches, windows, width = 6 * merge, 5, 7
    pixels = config.in_channels * config.temporal_patch_size * config.patch_size**2
    device = visual.patch_embed.proj.weight.device
    args = (
        torch.zeros(patches, pixels, device=device),
        torch.zeros(patches, 2, dtype=torch.int64, device=device),
        torch.zeros(windows, width, dtype=torch.int64, device=device),
        torch.zeros(patches, dtype=torch.int64, device=device),
    )
    return args, ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC}, {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
