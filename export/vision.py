"""Trace the vision tower to `vision.onnx`, with the inputs and output of docs/architecture.md.

Hugging Face computes window order, sequence lengths and splits in Python from the grid; here they are inputs, which
the host computes (`runtime/vision_layout.py`). The tower's own modules are called as they are, but for attention.
"""

from __future__ import annotations

import logging
import warnings

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from . import vision_attention as ops

INPUTS = ("pixel_values", "rotary_positions", "window_rows", "window_inverse")
OUTPUT = "visual_embeds"


class VisionTower(nn.Module):
    """The traced module: a Qwen2-VL or Qwen2.5-VL tower, one image at a time.

    Submodules are named so that parameter names equal the Hugging Face model's (`model.visual...`). Patches stay in
    the order of pixel_values throughout, so merged tokens leave in raster order.
    """

    def __init__(self, visual: nn.Module):
        super().__init__()
        self.model = nn.ModuleDict({"visual": visual})
        config = visual.config
        self.theta = config.rope_parameters["rope_theta"]
        # Qwen2-VL has no windows: every block attends to the whole page.
        self.full_blocks = set(getattr(config, "fullatt_block_indexes", range(config.depth)))

    def forward(self, pixel_values: Tensor, rotary_positions: Tensor, window_rows: Tensor, window_inverse: Tensor):
        visual = self.model["visual"]
        # A convolution whose stride is its kernel is a product of the flattened patch and the flattened kernel.
        kernel = visual.patch_embed.proj.weight.flatten(1)
        hidden = nn.functional.linear(pixel_values.to(kernel.dtype), kernel, visual.patch_embed.proj.bias)
        cos, sin = self._rotary(rotary_positions, visual.blocks[0].attn.head_dim)
        for i, block in enumerate(visual.blocks):
            windows = None if i in self.full_blocks else (window_rows, window_inverse)
            hidden = hidden + _attend(block.attn, block.norm1(hidden), cos, sin, windows)
            hidden = hidden + block.mlp(block.norm2(hidden))
        return visual.merger(hidden)

    def _rotary(self, positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
        """cos and sin [patches, 1, head_dim/2] float32: half of the pairs turn with the row, half with the column."""
        half = head_dim // 2
        steps = torch.arange(0, half, 2, dtype=torch.float32, device=positions.device)
        frequency = 1.0 / (self.theta ** (steps / half))
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


def trace_vision(model: nn.Module, form: ops.Form = "onnxruntime") -> ir.Model:
    """Trace the vision tower of a Hugging Face Qwen2.5-VL or Qwen2-VL model; weights are not read.

    model: a ...ForConditionalGeneration in the export dtype; its parameters may be uninitialised or on "meta".
    form: the bodies of the attention functions, see `vision_attention.functions`.

    The result's parameters are initializers under the model's own names, of the checkpoint's shapes: linear layers
    are Gemm with transB = 1, so nothing needs transposing; only the patch embedding's kernel passes a Reshape.
    Initializers hold the model's tensors: real weights are there to be saved, others to be replaced.
    """
    visual = model.model.visual
    tower = VisionTower(visual).eval()
    args, dynamic = _example(visual)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        exported = torch.export.export(tower, args, dynamic_shapes=dynamic, strict=False)
        program = torch.onnx.export(
            exported,
            args=(),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            opset_version=ops.OPSET,
            optimize=False,
            verbose=False,
            custom_translation_table=ops.TRANSLATION_TABLE,
        )
    traced = program.model
    for value, shape in zip((*traced.graph.inputs, *traced.graph.outputs), _shapes(visual), strict=True):
        value.shape = ir.Shape(shape)
    for function in ops.functions(form):
        body = ir.serde.deserialize_function(function)
        traced.functions[body.identifier()] = body
    traced.graph.opset_imports[ops.DOMAIN] = ops.OPSET_VERSION
    if form == "onnxruntime":
        traced.graph.opset_imports["com.microsoft"] = 1
    return traced


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
