"""The vision tower's two attention ops: torch.library ops, ONNX schemas, and their bodies as model-local functions.

query, key, value and output are [patches, num_heads*head_dim] in the model's dtype, with rotary applied before.
`BidirectionalAttention`: every patch sees every patch of the page.
`WindowAttention`: a patch sees the patches of its window; window_rows [windows,W] and window_inverse [patches] are
int64 as in docs/architecture.md.
Attributes of both: num_heads (int), scale (float).
"""

from __future__ import annotations

from typing import Literal

import onnx
import onnxscript
import torch
from onnx import parser
from torch import Tensor

from .schemas import DOMAIN, OPSET, OPSET_VERSION, AttrType, register_schema

BIDIRECTIONAL_INPUTS = ("query", "key", "value")
WINDOW_INPUTS = (*BIDIRECTIONAL_INPUTS, "window_rows", "window_inverse")
_INTEGERS = {"window_rows", "window_inverse"}

Form = Literal["onnxruntime", "standard"]

# A window at the page's edge is filled up with -1: Gather reads the last patch there, and the bias hides it.
_GATHER = """
  hidden = Shape<start = 1, end = 2>(query)
  zero = Constant<value = int64[1] {0}>()
  last = Constant<value = int64[1] {-1}>()
  q = Gather(query, window_rows)
  k = Gather(key, window_rows)
  v = Gather(value, window_rows)
  none = Constant<value = int64 {0}>()
  seen2 = GreaterOrEqual(window_rows, none)
  middle = Constant<value = int64[2] {1, 2}>()
  seen = Unsqueeze(seen2, middle)
  open_f = Constant<value = float {0}>()
  shut_f = Constant<value = float {-65504}>()
  rows = Shape(window_rows)
  count, width = Split<num_outputs = 2>(rows)
  one = Constant<value = int64[1] {1}>()
  bias_shape = Concat<axis = 0>(count, one, width, width)
"""

_SCATTER = """
  flat_shape = Concat<axis = 0>(last, hidden)
  flat = Reshape(attended, flat_shape)
  output = Gather(flat, window_inverse)
"""

_WHOLE = """
  batch_axis = Constant<value = int64[1] {0}>()
  q = Unsqueeze(query, batch_axis)
  k = Unsqueeze(key, batch_axis)
  v = Unsqueeze(value, batch_axis)
"""

_WHOLE_END = """
  output = Squeeze(attended, batch_axis)
"""

# ONNX Runtime's MultiHeadAttention on the CPU never holds the scores of a whole page (measured: as fast as torch's
# sdpa; the standard Attention and the plain MatMul form hold heads * patches^2 values). It is a float32 kernel.
_ONNXRUNTIME = """
  q32 = Cast<to = 1>(q)
  k32 = Cast<to = 1>(k)
  v32 = Cast<to = 1>(v)
  {bias}
  attended32 = com.microsoft.MultiHeadAttention<num_heads: int = @num_heads, scale: float = @scale>({inputs})
  attended = CastLike(attended32, query)
"""
_ONNXRUNTIME_BIAS = """
  bias_row = Where(seen, open_f, shut_f)
  bias = Expand(bias_row, bias_shape)
"""

_STANDARD = """
  {bias}
  attended = Attention<q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads, scale: float = @scale>({inputs})
"""
_STANDARD_BIAS = """
  bias_row32 = Where(seen, open_f, shut_f)
  bias_row = CastLike(bias_row32, query)
  bias = Expand(bias_row, bias_shape)
"""


def functions(form: Form = "onnxruntime") -> list[onnx.FunctionProto]:
    """Bodies of the two ops, to be added to a model.

    "onnxruntime" uses com.microsoft.MultiHeadAttention; "standard" is of ONNX operators alone (Attention, opset 24),
    for parsers that know no other, which then must have a fused kernel of it for large pages.
    """
    if form == "onnxruntime":
        whole = _ONNXRUNTIME.format(bias="", inputs="q32, k32, v32")
        windows = _ONNXRUNTIME.format(bias=_ONNXRUNTIME_BIAS, inputs='q32, k32, v32, "", "", bias')
    else:
        whole = _STANDARD.format(bias="", inputs="q, k, v")
        windows = _STANDARD.format(bias=_STANDARD_BIAS, inputs="q, k, v, bias")
    bodies = {
        "BidirectionalAttention": (BIDIRECTIONAL_INPUTS, _WHOLE + whole + _WHOLE_END),
        "WindowAttention": (WINDOW_INPUTS, _GATHER + windows + _SCATTER),
    }
    contrib = ', "com.microsoft": 1' if form == "onnxruntime" else ""
    header = f'<opset_import: ["": {OPSET}{contrib}], domain: "{DOMAIN}">'
    return [
        parser.parse_function(
            f"{header}\n{name} <num_heads: int, scale: float> ({', '.join(inputs)}) => (output)\n{{{body}}}"
        )
        for name, (inputs, body) in bodies.items()
    ]


@torch.library.custom_op("fastocr::bidirectional_attention", mutates_args=())
def bidirectional_attention(query: Tensor, key: Tensor, value: Tensor, num_heads: int, scale: float) -> Tensor:
    q, k, v = (t.unflatten(-1, (num_heads, -1)).transpose(0, 1) for t in (query, key, value))
    output = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0]
    return output.transpose(0, 1).flatten(1).contiguous()


@torch.library.custom_op("fastocr::window_attention", mutates_args=())
def window_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    window_rows: Tensor,
    window_inverse: Tensor,
    num_heads: int,
    scale: float,
) -> Tensor:
    q, k, v = (t[window_rows].unflatten(-1, (num_heads, -1)).transpose(1, 2) for t in (query, key, value))
    seen = (window_rows >= 0)[:, None, None]
    output = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    return output.transpose(1, 2).reshape(-1, query.shape[1])[window_inverse]


@bidirectional_attention.register_fake
def _(query, key, value, num_heads, scale):
    return torch.empty_like(query)


@window_attention.register_fake
def _(query, key, value, window_rows, window_inverse, num_heads, scale):
    return torch.empty_like(query)


_ATTRIBUTES = {"num_heads": AttrType.INT, "scale": AttrType.FLOAT}
# onnxscript asks for the schemas when it translates
register_schema("BidirectionalAttention", BIDIRECTIONAL_INPUTS, ("output",), _ATTRIBUTES, _INTEGERS)
register_schema("WindowAttention", WINDOW_INPUTS, ("output",), _ATTRIBUTES, _INTEGERS)
_fastocr = onnxscript.values.Opset(DOMAIN, OPSET_VERSION)


def _onnx_bidirectional(query, key, value, num_heads: int, scale: float):
    return _fastocr.BidirectionalAttention(query, key, value, num_heads=num_heads, scale=scale)


def _onnx_window(query, key, value, window_rows, window_inverse, num_heads: int, scale: float):
    return _fastocr.WindowAttention(query, key, value, window_rows, window_inverse, num_heads=num_heads, scale=scale)


TRANSLATION_TABLE = {
    torch.ops.fastocr.bidirectional_attention.default: _onnx_bidirectional,
    torch.ops.fastocr.window_attention.default: _onnx_window,
}
