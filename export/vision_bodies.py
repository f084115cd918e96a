"""Bodies of the vision tower's two attention ops, as model-local functions in three forms. No torch here."""

from __future__ import annotations

from typing import Literal

import onnx
from onnx import parser

from .schemas import DOMAIN, OPSET

BIDIRECTIONAL_INPUTS = ("query", "key", "value")
WINDOW_INPUTS = (*BIDIRECTIONAL_INPUTS, "window_rows", "window_inverse")

Form = Literal["onnxruntime", "standard", "plain"]

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


# Every step is spelled out for parsers without an attention op, which may find the pattern and fuse it.
_PLAIN = """
  factor_f = Constant<value_float: float = @scale>()
  factor = CastLike(factor_f, query)
  heads0 = Constant<value_int: int = @num_heads>()
  back = Constant<value = int64[1] {{-1}}>()
  heads = Reshape(heads0, back)
  same = Constant<value = int64[1] {{0}}>()
  split = Concat<axis = 0>(same, same, heads, back)
  q4 = Reshape(q, split)
  k4 = Reshape(k, split)
  v4 = Reshape(v, split)
  qt = Transpose<perm = [0, 2, 1, 3]>(q4)
  kt = Transpose<perm = [0, 2, 3, 1]>(k4)
  vt = Transpose<perm = [0, 2, 1, 3]>(v4)
  scaled = Mul(qt, factor)
  scores = MatMul(scaled, kt)
  {bias}
  weights = Softmax<axis = -1>({inputs})
  attended4 = MatMul(weights, vt)
  attended_t = Transpose<perm = [0, 2, 1, 3]>(attended4)
  joined = Concat<axis = 0>(same, same, back)
  attended = Reshape(attended_t, joined)
"""
_PLAIN_BIAS = """
  bias_row32 = Where(seen, open_f, shut_f)
  bias_row = CastLike(bias_row32, query)
  masked = Add(scores, bias_row)
"""


def functions(form: Form = "onnxruntime") -> list[onnx.FunctionProto]:
    """Bodies of the two ops, to be added to a model.

    "onnxruntime" uses com.microsoft.MultiHeadAttention; "standard" is of ONNX operators alone (Attention, opset 24),
    for parsers that know no other, which then must have a fused kernel of it for large pages; "plain" has no attention
    operator at all.
    """
    if form == "onnxruntime":
        whole = _ONNXRUNTIME.format(bias="", inputs="q32, k32, v32")
        windows = _ONNXRUNTIME.format(bias=_ONNXRUNTIME_BIAS, inputs='q32, k32, v32, "", "", bias')
    elif form == "standard":
        whole = _STANDARD.format(bias="", inputs="q, k, v")
        windows = _STANDARD.format(bias=_STANDARD_BIAS, inputs="q, k, v, bias")
    else:
        whole = _PLAIN.format(bias="", inputs="scores")
        windows = _PLAIN.format(bias=_PLAIN_BIAS, inputs="masked")
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
