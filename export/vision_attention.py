"""The vision tower's two attention ops: torch.library ops and ONNX schemas; `vision_bodies.py` has their bodies.

query, key, value and output are [patches, num_heads*head_dim] in the model's dtype, with rotary applied before.
`BidirectionalAttention`: every patch sees every patch of the page.
`WindowAttention`: a patch sees the patches of its window; window_rows [windows,W] and window_inverse [patches] are
int64 as in docs/architecture.md.
Attributes of both: num_heads (int), scale (float).
"""

from __future__ import annotations

import onnxscript
import torch
from torch import Tensor

from .schemas import DOMAIN, OPSET_VERSION, AttrType, register_schema
from .vision_bodies import BIDIRECTIONAL_INPUTS, WINDOW_INPUTS

_INTEGERS = {"window_rows", "window_inverse"}


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
