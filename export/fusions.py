"""Two operators that transformers spells out, as one ONNX node each: RMSNormalization and RotaryEmbedding (opset 23).

ONNX Runtime and TensorRT-RTX have kernels for both; ONNX Runtime's own fusion misses them in this form.
"""

from __future__ import annotations

import onnx_ir as ir
from onnxscript.rewriter import RewriteRule, RewriteRuleSet


def fuse(model: ir.Model) -> int:
    """Fuse in place; gives the number of nodes made."""
    return _RULES.apply_to_model(model)


def _rms(op, x, weight, epsilon, power, axes):
    variance = op.ReduceMean(op.Pow(x, power), axes, keepdims=1, _allow_other_attributes=True)
    return op.Mul(weight, op.Mul(x, op.Reciprocal(op.Sqrt(op.Add(variance, epsilon)))))


def _cast_rms(op, x, weight, epsilon, power, axes, dtype):
    x32 = op.Cast(x, to=ir.DataType.FLOAT, _allow_other_attributes=True)
    variance = op.ReduceMean(op.Pow(x32, power), axes, keepdims=1, _allow_other_attributes=True)
    normal = op.Mul(x32, op.Reciprocal(op.Sqrt(op.Add(variance, epsilon))))
    return op.Mul(weight, op.Cast(normal, to=dtype, _allow_other_attributes=True))


def _is_rms(context, x, weight, epsilon, power, axes, **_) -> bool:
    over_last_axis = _scalar(power) == 2 and _scalar(axes) in (-1, _rank(x) - 1)
    return over_last_axis and _scalar(epsilon) is not None and _rank(weight) == 1


def _make_rms(op, x, weight, epsilon, **_):
    return op.RMSNormalization(x, weight, axis=-1, epsilon=_scalar(epsilon), stash_type=1)


def _rotary(op, x, cos, sin, cos_axes, sin_axes, start1, end1, start2, end2, axes1, axes2, step1, step2):
    first, second = op.Slice(x, start1, end1, axes1, step1), op.Slice(x, start2, end2, axes2, step2)
    turned = op.Concat(op.Neg(second), first, axis=-1)
    cosine = op.Unsqueeze(op.Concat(cos, cos, axis=-1), cos_axes)
    sine = op.Unsqueeze(op.Concat(sin, sin, axis=-1), sin_axes)
    return op.Add(op.Mul(x, cosine), op.Mul(turned, sine))


def _cast_rotary(op, x, cos, sin, cos_axes, sin_axes, start1, end1, start2, end2, axes1, axes2, step1, step2, dtype):
    first, second = op.Slice(x, start1, end1, axes1, step1), op.Slice(x, start2, end2, axes2, step2)
    turned = op.Concat(op.Neg(second), first, axis=-1)
    cosine = op.Cast(op.Concat(cos, cos, axis=-1), to=dtype, _allow_other_attributes=True)
    sine = op.Cast(op.Concat(sin, sin, axis=-1), to=dtype, _allow_other_attributes=True)
    return op.Add(op.Mul(x, op.Unsqueeze(cosine, cos_axes)), op.Mul(turned, op.Unsqueeze(sine, sin_axes)))


def _is_rotary(context, x, cos_axes, sin_axes, start1, end1, start2, end2, axes1, axes2, step1, step2, **_) -> bool:
    if _rank(x) != 4 or not isinstance(x.shape[-1], int):
        return False
    width = x.shape[-1]
    halves = (_scalar(start1), _scalar(end1), _scalar(start2)) == (0, width // 2, width // 2) and _scalar(end2) >= width
    last = all(_scalar(axes) in (-1, 3) for axes in (axes1, axes2)) and _scalar(step1) == _scalar(step2) == 1
    return halves and last and _scalar(cos_axes) == _scalar(sin_axes) == 1


def _make_rotary(op, x, cos, sin, **_):
    return op.RotaryEmbedding(x, cos, sin)


def _make_cast_rotary(op, x, cos, sin, **_):
    return op.RotaryEmbedding(x, op.Cast(cos, to=x.dtype), op.Cast(sin, to=x.dtype))


def _rank(value: ir.Value) -> int:
    return -1 if value.shape is None else len(value.shape)


def _scalar(value: ir.Value) -> int | float | None:
    """The only number in a constant; None where the value is no constant or holds several."""
    constant = ir.convenience.get_const_tensor(value)
    return constant.numpy().item() if constant is not None and constant.size == 1 else None


# remove_nodes: the rotary factors are shared by all layers, so their nodes stay until nothing uses them.
_RULES = RewriteRuleSet(
    [
        RewriteRule(_rms, _make_rms, _is_rms, name="RMSNormalization"),
        RewriteRule(_cast_rms, _make_rms, _is_rms, name="RMSNormalization of a cast"),
        RewriteRule(_rotary, _make_rotary, _is_rotary, name="RotaryEmbedding", remove_nodes=False),
        RewriteRule(_cast_rotary, _make_cast_rotary, _is_rotary, name="RotaryEmbedding of casts", remove_nodes=False),
    ],
    commute=True,
)
