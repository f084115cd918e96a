"""Trace the decoder to `decoder_plugin.onnx`: one graph for prefill and decode, of ops in the engine form.

It has no function bodies: a TensorRT plugin implements its ops (see "The engine form" in docs/architecture.md).
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from torch import Tensor, nn

from ..fixation import FixationPolicy
from ..manifest import DecoderShape
from . import decoder, engine_form
from .attention import Banks
from .ops import BANKS
from .schemas import DOMAIN, ENGINE_OPSET_VERSION

STATE_INPUTS = (*engine_form.STATE, "num_fixations", "fixation_slots")
_CARRIED = {"fixation": "fixation", "status": "status", "next_status": "status"}


class PluginStep(decoder.DecoderStep):
    """The traced module: layers by the policy, any n."""

    def __init__(self, language_model: nn.Module, lm_head: nn.Module, policy: FixationPolicy):
        super().__init__(language_model, lm_head, policy, decoding=False)

    def forward(
        self,
        input_ids: Tensor,
        visual_embeds: Tensor,
        position_ids: Tensor,
        state: list[Tensor],
        active: Tensor,
        attend_all: Tensor,
        status: Tensor,
        fixation: Tensor,
        past: list[list[Tensor]],
    ):
        shared = dict(zip(STATE_INPUTS, state, strict=True))
        banks = [Banks(*layer) for layer in past]
        call = engine_form.EngineState(
            self.policy, banks, **shared, fixation=fixation, attend_all=attend_all, status=status
        )
        hidden = self.run(call, input_ids, visual_embeds, position_ids)
        following = self.following(hidden, position_ids, shared["text_length"], shared["text_valid"], active)
        return *following, call.fixation, call.status, [call.present[i] for i in range(len(past))]


def trace_plugin_decoder(
    build: Callable[[int], tuple[nn.Module, nn.Module]], shape: DecoderShape, policy: FixationPolicy
) -> ir.Model:
    """Trace the graph; arguments and parameters as in `decoder.trace_decoder`."""
    model = decoder.trace(build, shape, policy, _FORM)
    model.graph.opset_imports[DOMAIN] = ENGINE_OPSET_VERSION
    return model


def graph_inputs(shape: DecoderShape) -> list[str]:
    """Input names in order."""
    names = ["input_ids", "visual_embeds", "position_ids", *STATE_INPUTS, "active", "attend_all", "status", "fixation"]
    return names + [name for layer in decoder.past_names(shape) for name in layer]


def graph_outputs(shape: DecoderShape) -> list[str]:
    """Output names in order; all banks of all layers are present."""
    names = ["logits", "next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"]
    banks = [f"present.{i}.{bank}" for i in range(shape.num_layers) for bank in BANKS]
    return [*names, "next_fixation", "next_status", *banks]


def _arguments(shape: DecoderShape) -> tuple:
    one_by_one = ("active", "attend_all", "status", "fixation")
    return "input_ids", "visual_embeds", "position_ids", list(STATE_INPUTS), *one_by_one, decoder.past_names(shape)


def _carried(value: ir.Value) -> str:
    """The fixation passes from a focal layer to those after it, the status from every layer to the next."""
    node = value.producer()
    if node is None:
        return _CARRIED.get(value.name, "")
    if node.op_type not in engine_form.SIGNATURES:
        return ""
    return _CARRIED.get(engine_form.SIGNATURES[node.op_type][1][value.index()], "")


_FORM = decoder.Form(
    step=PluginStep,
    kinds=lambda shape, policy: [policy.kind(i) for i in range(shape.num_layers)],
    inputs=graph_inputs,
    outputs=lambda shape, policy: graph_outputs(shape),
    arguments=_arguments,
    carried=_carried,
    translations=engine_form.TRANSLATION_TABLE,
    decoding=False,
)
