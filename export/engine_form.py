"""The three ops in the engine form, for torch.export and ONNX: what `decoder_plugin.onnx` is made of.

One engine serves prefill and decode, so every op appends to both banks and is dense where n > 1; the TensorRT plugin
implements them (see "The engine form" in docs/architecture.md). In ONNX they are version 2 of the domain, since their
inputs differ from those of the plain ops of the same names. The eager implementation is `reference.engine_form`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnxscript
import torch
from torch import Tensor

from .. import reference
from ..backends import PLUGIN_NAMESPACE, PLUGIN_VERSION
from ..fixation import FixationPolicy
from .attention import Banks
from .ops import BANKS, NEW_ROWS, as_tensors, to_numpy
from .schemas import DOMAIN, ENGINE_OPSET_VERSION, AttrType, register_schema

STATE = ("visual_length", "text_length", "visual_valid", "text_valid")

_COMMON = (*NEW_ROWS, *(f"past_{bank}" for bank in BANKS), *STATE)
_PRESENT = ("output", *(f"present_{bank}" for bank in BANKS))
_FORM = {"dense_prefill": 1, "plugin_version": PLUGIN_VERSION, "plugin_namespace": PLUGIN_NAMESPACE}
_FORM |= {"alias_banks": 0, "tune_splits": 0}  # the plugin's defaults: TensorRT's parser warns where they are absent
_INTEGERS = {*STATE, "num_fixations", "fixation_slots", "fixation", "attend_all", "status", "next_status"}

# name -> (inputs, outputs, attributes: the type of a required one, or a default)
SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[str, ...], dict[str, AttrType | int | str]]] = {
    "DenseAttention": (
        (*_COMMON, "status"),
        (*_PRESENT, "next_status"),
        {"scale": AttrType.FLOAT, **_FORM},
    ),
    "FocalAttention": (
        (*_COMMON, "num_fixations", "fixation_slots", "status"),
        (*_PRESENT, "fixation", "next_status"),
        {"scale": AttrType.FLOAT, "per_kv_head": 1, **_FORM},
    ),
    "GatheredAttention": (
        (*_COMMON, "fixation", "attend_all", "status"),
        (*_PRESENT, "next_status"),
        {"scale": AttrType.FLOAT, **_FORM},
    ),
}


@torch.library.custom_op("fastocr::engine_dense_attention", mutates_args=())
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
    status: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    banks = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    state = (visual_length, text_length, visual_valid, text_valid)
    return _run("dense", (query, key, value, *banks, *state, status), scale=scale)


@torch.library.custom_op("fastocr::engine_focal_attention", mutates_args=())
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
    num_fixations: Tensor,
    fixation_slots: Tensor,
    status: Tensor,
    scale: float,
    per_kv_head: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    banks = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    state = (visual_length, text_length, visual_valid, text_valid)
    selection = {
        "num_fixations": num_fixations.numpy(),
        "fixation_size": len(fixation_slots),
        "per_kv_head": bool(per_kv_head),
    }
    return _run("focal", (query, key, value, *banks, *state, status), scale=scale, **selection)


@torch.library.custom_op("fastocr::engine_gathered_attention", mutates_args=())
def gathered_attention(
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
    fixation: Tensor,
    attend_all: Tensor,
    status: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    banks = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    state = (visual_length, text_length, visual_valid, text_valid)
    chosen = {"fixation": fixation.numpy(), "attend_all": attend_all.numpy()}
    return _run("gathered", (query, key, value, *banks, *state, status), scale=scale, **chosen)


@dense_attention.register_fake
def _(query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, status, scale):
    return tuple(torch.empty_like(t) for t in (query, pvk, pvv, ptk, ptv, status))


@focal_attention.register_fake
def _(query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, num_fixations, fixation_slots, status, scale, per_kv_head):
    fixation = num_fixations.new_empty((key.shape[0], key.shape[1], fixation_slots.shape[0]))
    return (*(torch.empty_like(t) for t in (query, pvk, pvv, ptk, ptv)), fixation, torch.empty_like(status))


@gathered_attention.register_fake
def _(query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, fixation, attend_all, status, scale):
    return tuple(torch.empty_like(t) for t in (query, pvk, pvv, ptk, ptv, status))


def _run(op: str, tensors: tuple[Tensor, ...], **arguments) -> tuple[Tensor, ...]:
    results = reference.engine_form(op, *to_numpy(*tensors), **arguments)
    return as_tensors(tensors[0], (array for array in results if array is not None))


@dataclass
class EngineState:
    """What all layers of one call share, and what passes through them: the fixation and the status."""

    policy: FixationPolicy
    past: list[Banks]
    visual_length: Tensor
    text_length: Tensor
    visual_valid: Tensor
    text_valid: Tensor
    num_fixations: Tensor
    fixation_slots: Tensor
    fixation: Tensor
    attend_all: Tensor
    status: Tensor
    present: dict[int, list[Tensor]] = field(default_factory=dict)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [B,H,n,D]; key, value [B,KV,n,D]; gives [B,H,n,D] and notes the layer's present banks."""
        past, kind = self.past[layer], self.policy.kind(layer)
        banks = (past.visual_key, past.visual_value, past.text_key, past.text_value)
        lengths = (self.visual_length, self.text_length, self.visual_valid, self.text_valid)
        inputs = (query, key, value, *banks, *lengths)
        if kind == "dense":
            output, *rest = torch.ops.fastocr.engine_dense_attention(*inputs, self.status, scale)
        elif kind == "focal":
            output, *rest = torch.ops.fastocr.engine_focal_attention(
                *inputs, self.num_fixations, self.fixation_slots, self.status, scale, int(self.policy.per_kv_head)
            )
            self.fixation = rest[4]
        else:
            output, *rest = torch.ops.fastocr.engine_gathered_attention(
                *inputs, self.fixation, self.attend_all, self.status, scale
            )
        self.present[layer], self.status = rest[:4], rest[-1]
        return output


for _name, _signature in SIGNATURES.items():  # onnxscript asks for the schema when the translation below runs
    register_schema(_name, *_signature, _INTEGERS, ENGINE_OPSET_VERSION)
_fastocr = onnxscript.values.Opset(DOMAIN, ENGINE_OPSET_VERSION)


def _translation(name: str):
    traced = [attribute for attribute in SIGNATURES[name][2] if attribute not in _FORM]

    def translate(*arguments):  # the tensors, then the traced attributes
        count = len(arguments) - len(traced)
        attributes = dict(zip(traced, arguments[count:], strict=True))
        return getattr(_fastocr, name)(*arguments[:count], **attributes, **_FORM)

    return translate


TRANSLATION_TABLE = {
    torch.ops.fastocr.engine_dense_attention.default: _translation("DenseAttention"),
    torch.ops.fastocr.engine_focal_attention.default: _translation("FocalAttention"),
    torch.ops.fastocr.engine_gathered_attention.default: _translation("GatheredAttention"),
}
