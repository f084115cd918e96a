"""The three attention ops for torch.export and ONNX: torch.library ops, ONNX schemas, and the table between them.

Shapes, dtypes and order of inputs and outputs are those of docs/architecture.md. The eager implementation is the
oracle of `fastocr_trt.reference`, so a traced module can be run in torch and compared with its ONNX graph.
"""

from __future__ import annotations

import onnxscript
import torch
from torch import Tensor

from .. import reference
from .schemas import DOMAIN, OPSET_VERSION, AttrType, register_schema

NEW_ROWS = ("query", "key", "value")
VISUAL = ("visual_key", "visual_value")
TEXT = ("text_key", "text_value")
BANKS = VISUAL + TEXT
STATE = ("visual_length", "text_length", "visual_valid", "text_valid", "visual_slots", "text_slots")

DENSE_INPUTS = (*NEW_ROWS, *(f"past_{bank}" for bank in BANKS), *STATE)
DENSE_OUTPUTS = ("output", *(f"present_{bank}" for bank in BANKS))
FOCAL_INPUTS = (*DENSE_INPUTS, "num_fixations", "fixation_slots")
FOCAL_OUTPUTS = (*DENSE_OUTPUTS, "fixation")
GATHERED_INPUTS = (
    *NEW_ROWS,
    *VISUAL,
    *(f"past_{bank}" for bank in TEXT),
    "text_length",
    "visual_valid",
    "text_valid",
    "text_slots",
    "fixation",
)
GATHERED_OUTPUTS = ("output", *(f"present_{bank}" for bank in TEXT))

# name -> (inputs, outputs, attributes: the type of a required one, or a default)
SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, AttrType | int]]] = {
    "DenseAttention": (DENSE_INPUTS, DENSE_OUTPUTS, {"scale": AttrType.FLOAT}),
    "FocalAttention": (FOCAL_INPUTS, FOCAL_OUTPUTS, {"scale": AttrType.FLOAT, "per_kv_head": 1}),
    "GatheredAttention": (GATHERED_INPUTS, GATHERED_OUTPUTS, {"scale": AttrType.FLOAT}),
}

_INTEGERS = {*STATE, "num_fixations", "fixation_slots", "fixation"}


@torch.library.custom_op("fastocr::dense_attention", mutates_args=())
def dense_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_visual_key: Tensor,
    past_visual_value: Tensor,
    past_text_key: Tensor,
    past_text_value: Tensor,
    visual_length: Tensor,
    text_length: Tensor,
    visual_valid: Tensor,
    text_valid: Tensor,
    visual_slots: Tensor,
    text_slots: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    past = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    state = (visual_length, text_length, visual_valid, text_valid)
    return as_tensors(query, reference.dense_attention(*to_numpy(query, key, value, *past, *state), scale=scale))


@torch.library.custom_op("fastocr::focal_attention", mutates_args=())
def focal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_visual_key: Tensor,
    past_visual_value: Tensor,
    past_text_key: Tensor,
    past_text_value: Tensor,
    visual_length: Tensor,
    text_length: Tensor,
    visual_valid: Tensor,
    text_valid: Tensor,
    visual_slots: Tensor,
    text_slots: Tensor,
    num_fixations: Tensor,
    fixation_slots: Tensor,
    scale: float,
    per_kv_head: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    past = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    state = (visual_length, text_length, visual_valid, text_valid, num_fixations)
    arrays = to_numpy(query, key, value, *past, *state)
    size = len(fixation_slots)
    return as_tensors(query, reference.focal_attention(*arrays, size, scale=scale, per_kv_head=bool(per_kv_head)))


@torch.library.custom_op("fastocr::gathered_attention", mutates_args=())
def gathered_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visual_key: Tensor,
    visual_value: Tensor,
    past_text_key: Tensor,
    past_text_value: Tensor,
    text_length: Tensor,
    visual_valid: Tensor,
    text_valid: Tensor,
    text_slots: Tensor,
    fixation: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    banks = (visual_key, visual_value, past_text_key, past_text_value)
    state = (text_length, visual_valid, text_valid, fixation)
    return as_tensors(query, reference.gathered_attention(*to_numpy(query, key, value, *banks, *state), scale=scale))


@dense_attention.register_fake
def _(query, key, value, pvk, pvv, ptk, ptv, *state_and_scale):
    return tuple(torch.empty_like(t) for t in (query, pvk, pvv, ptk, ptv))


@focal_attention.register_fake
def _(query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, vs, ts, num_fixations, fixation_slots, scale, per_kv_head):
    fixation = num_fixations.new_empty((key.shape[0], key.shape[1], fixation_slots.shape[0]))
    return (*(torch.empty_like(t) for t in (query, pvk, pvv, ptk, ptv)), fixation)


@gathered_attention.register_fake
def _(query, key, value, visual_key, visual_value, ptk, ptv, *state_and_scale):
    return tuple(torch.empty_like(t) for t in (query, ptk, ptv))


def to_numpy(*tensors: Tensor):
    return [(t.float() if t.is_floating_point() else t).numpy() for t in tensors]


def as_tensors(query: Tensor, arrays) -> tuple[Tensor, ...]:
    tensors = (torch.from_numpy(array) for array in arrays)
    return tuple(t.to(query.dtype) if t.is_floating_point() else t for t in tensors)


for _name, _signature in SIGNATURES.items():  # onnxscript asks for the schema when the translation below runs
    register_schema(_name, *_signature, _INTEGERS)
_fastocr = onnxscript.values.Opset(DOMAIN, OPSET_VERSION)


def _translation(name: str):
    attributes = SIGNATURES[name][2]

    def translate(*arguments):  # the tensors, then the attributes
        count = len(arguments) - len(attributes)
        return getattr(_fastocr, name)(*arguments[:count], **dict(zip(attributes, arguments[count:], strict=True)))

    return translate


TRANSLATION_TABLE = {
    torch.ops.fastocr.dense_attention.default: _translation("DenseAttention"),
    torch.ops.fastocr.focal_attention.default: _translation("FocalAttention"),
    torch.ops.fastocr.gathered_attention.default: _translation("GatheredAttention"),
}
