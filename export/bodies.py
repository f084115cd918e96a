"""The three ops as model-local ONNX functions of standard operators (opset 24).

ONNX Runtime and TensorRT-RTX inline them, so that an exported graph runs where nothing of ours is installed.
Choices that are measured: the query heads of a KV head are folded into rows, so that K and V are never repeated;
each bank is sliced to the rows in use; the scores of both banks share one softmax without joining the banks.
"""

from __future__ import annotations

import onnx
from onnx import parser

from .ops import DENSE_INPUTS, DENSE_OUTPUTS, FOCAL_INPUTS, FOCAL_OUTPUTS, GATHERED_INPUTS, GATHERED_OUTPUTS
from .schemas import DOMAIN, OPSET

# -65504 is float16's lowest finite value: a row that sees nothing then averages its slots instead of giving NaN.
_CONSTANTS = """
  zero = Constant<value = int64[1] {0}>()
  last = Constant<value = int64[1] {-1}>()
  row_axis = Constant<value = int64[1] {2}>()
  head_axes = Constant<value = int64[2] {1, 2}>()
  open_f = Constant<value = float {0}>()
  shut_f = Constant<value = float {-65504}>()
  scale_f = Constant<value_float: float = @scale>()
  open = CastLike(open_f, query)
  shut = CastLike(shut_f, query)
  factor = CastLike(scale_f, query)
"""

_APPEND_VISUAL = """
  present_visual_key = TensorScatter<axis = -2>(past_visual_key, key, visual_length)
  present_visual_value = TensorScatter<axis = -2>(past_visual_value, value, visual_length)
"""

_APPEND_TEXT = """
  present_text_key = TensorScatter<axis = -2>(past_text_key, key, text_length)
  present_text_value = TensorScatter<axis = -2>(past_text_value, value, text_length)
  text_rows = Shape(text_slots)
  kt = Slice(present_text_key, zero, text_rows, row_axis)
  vt = Slice(present_text_value, zero, text_rows, row_axis)
"""

_SLICE_VISUAL = """
  visual_rows = Shape(visual_slots)
  kv = Slice(present_visual_key, zero, visual_rows, row_axis)
  vv = Slice(present_visual_value, zero, visual_rows, row_axis)
"""

_WHOLE_VISUAL = """
  visual_rows = Shape(visual_slots)
  kv = Identity(present_visual_key)
  vv = Identity(present_visual_value)
"""

# fixation holds -1 in unused places: GatherND reads the last row there, and the mask hides it.
_GATHER_VISUAL = """
  visual_rows = Shape<start = 2, end = 3>(fixation)
  index = Unsqueeze(fixation, last)
  kv = GatherND<batch_dims = 2>(visual_key, index)
  vv = GatherND<batch_dims = 2>(visual_value, index)
"""

# Mask of the visual rows, as [B, 1 or KV, 1, n, rows].
_ALL_VISUAL_MASK = """
  visual_bound = Unsqueeze(visual_valid, last)
  visual_seen3 = Less(visual_slots, visual_bound)
  visual_seen = Unsqueeze(visual_seen3, head_axes)
"""

_GATHERED_MASK = """
  bound_axes = Constant<value = int64[3] {1, 2, 4}>()
  chosen_axes = Constant<value = int64[2] {2, 3}>()
  none = Constant<value = int64 {0}>()
  visual_bound = Unsqueeze(visual_valid, bound_axes)
  chosen = Unsqueeze(fixation, chosen_axes)
  below = Less(chosen, visual_bound)
  used = GreaterOrEqual(chosen, none)
  visual_seen = And(used, below)
"""

_ATTEND = """
  kv_heads = Shape<start = 1, end = 2>(key)
  head_dim = Shape<start = 3, end = 4>(key)
  grouped = Concat<axis = 0>(zero, kv_heads, last, head_dim)
  query_grouped = Reshape(query, grouped)
  query_scaled = Mul(query_grouped, factor)
  kvt = Transpose<perm = [0, 1, 3, 2]>(kv)
  ktt = Transpose<perm = [0, 1, 3, 2]>(kt)
  visual_scores = MatMul(query_scaled, kvt)
  text_scores = MatMul(query_scaled, ktt)
  rows = Shape<start = 2, end = 3>(query)
  visual_shape = Concat<axis = 0>(zero, zero, last, rows, visual_rows)
  text_shape = Concat<axis = 0>(zero, zero, last, rows, text_rows)
  visual_scores5 = Reshape(visual_scores, visual_shape)
  text_scores5 = Reshape(text_scores, text_shape)
  text_bound = Unsqueeze(text_valid, last)
  text_seen3 = Less(text_slots, text_bound)
  text_seen = Unsqueeze(text_seen3, head_axes)
  visual_bias = Where(visual_seen, open, shut)
  text_bias = Where(text_seen, open, shut)
  visual_masked = Add(visual_scores5, visual_bias)
  text_masked = Add(text_scores5, text_bias)
  masked = Concat<axis = -1>(visual_masked, text_masked)
  weights5 = Softmax<axis = -1>(masked)
  all_rows = Add(visual_rows, text_rows)
  flat = Concat<axis = 0>(zero, zero, last, all_rows)
  weights = Reshape(weights5, flat)
  parts = Concat<axis = 0>(visual_rows, text_rows)
  visual_weights, text_weights = Split<axis = -1>(weights, parts)
  visual_output = MatMul(visual_weights, vv)
  text_output = MatMul(text_weights, vt)
  output_grouped = Add(visual_output, text_output)
  query_shape = Shape(query)
  output = Reshape(output_grouped, query_shape)
"""

# Unseen rows rank below every seen one, so a page's own rows come first and the sorted TopK can be cut at its own k.
# What is left is put in the order of the bank, which the other layers then gather from front to back (float32 holds row
# numbers exactly to 2^24, and TensorRT sorts no int64).
_MASS = """
  end = Constant<value = int64[1] {9223372036854775807}>()
  query_axis = Constant<value = int64[1] {3}>()
  seen_axis = Constant<value = int64[1] {1}>()
  last_weights = Slice(weights5, last, end, query_axis)
  last_weights32 = Cast<to = 1>(last_weights)
  mass_axes = Constant<value = int64[2] {2, 3}>()
  mass_all = ReduceSum<keepdims = 0>(last_weights32, mass_axes)
  mass_heads = Slice(mass_all, zero, visual_rows, row_axis)
"""

_MASS_PER_HEAD = """
  mass = Identity(mass_heads)
"""

_MASS_SHARED = """
  mass = ReduceSum<keepdims = 1>(mass_heads, seen_axis)
"""

_SELECT = """
  last_seen = Slice(visual_seen3, last, end, seen_axis)
  never = Constant<value = float {-1}>()
  ranked = Where(last_seen, mass, never)
  size = Shape(fixation_slots)
  top, selected = TopK<axis = -1, sorted = 1>(ranked, size)
  last_valid = Slice(visual_valid, last, end, seen_axis)
  num_fixations2 = Unsqueeze(num_fixations, last)
  count2 = Min(num_fixations2, last_valid)
  count = Unsqueeze(count2, last)
  used = Less(fixation_slots, count)
  unused = Constant<value = int64 {-1}>()
  cut = Where(used, selected, unused)
  cut32 = Cast<to = 1>(cut)
  in_order32, order = TopK<axis = -1, largest = 0, sorted = 1>(cut32, size)
  in_order = Cast<to = 7>(in_order32)
"""

_FIXATION_PER_HEAD = """
  fixation = Identity(in_order)
"""

_FIXATION_SHARED = """
  batch_one = Shape<start = 0, end = 1>(key)
  fixation_shape = Concat<axis = 0>(batch_one, kv_heads, size)
  fixation = Expand(in_order, fixation_shape)
"""


def function_texts(*, per_kv_head: bool = True, visual_slice: bool = True) -> dict[str, str]:
    """The functions in ONNX's text format, by op name.

    per_kv_head: whether a fixation is chosen for each KV head, or one for all by the summed mass; it must equal the
    attribute of the nodes. visual_slice: read only the visual rows in use; False reads the whole bank, and
    visual_slots must then be as long as the bank (it pays only where the bank is about full and very large).
    """
    visual = _SLICE_VISUAL if visual_slice else _WHOLE_VISUAL
    dense = _CONSTANTS + _APPEND_VISUAL + _APPEND_TEXT + visual + _ALL_VISUAL_MASK + _ATTEND
    mass, fixation = (_MASS_PER_HEAD, _FIXATION_PER_HEAD) if per_kv_head else (_MASS_SHARED, _FIXATION_SHARED)
    gathered = _CONSTANTS + _APPEND_TEXT + _GATHER_VISUAL + _GATHERED_MASK + _ATTEND
    focal_attributes = f"scale: float, per_kv_head: int = {int(per_kv_head)}"
    return {
        "DenseAttention": _function("DenseAttention", "scale: float", DENSE_INPUTS, DENSE_OUTPUTS, dense),
        "FocalAttention": _function(
            "FocalAttention", focal_attributes, FOCAL_INPUTS, FOCAL_OUTPUTS, dense + _MASS + mass + _SELECT + fixation
        ),
        "GatheredAttention": _function(
            "GatheredAttention", "scale: float", GATHERED_INPUTS, GATHERED_OUTPUTS, gathered
        ),
    }


def functions(*, per_kv_head: bool = True, visual_slice: bool = True) -> list[onnx.FunctionProto]:
    """The three FunctionProtos, to be added to a model; arguments as in `function_texts`."""
    texts = function_texts(per_kv_head=per_kv_head, visual_slice=visual_slice)
    return [parser.parse_function(text) for text in texts.values()]


def _function(name: str, attributes: str, inputs: tuple[str, ...], outputs: tuple[str, ...], body: str) -> str:
    signature = f"{name} <{attributes}> ({', '.join(inputs)}) => ({', '.join(outputs)})"
    return f'<opset_import: ["": {OPSET}], domain: "{DOMAIN}">\n{signature}\n{{{body}}}'
