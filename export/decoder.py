"""Trace the decoder to `dense.onnx` and `fast.onnx`, with the inputs and outputs of docs/architecture.md.

`decoder_plugin.py` traces the third graph with what is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim

from ..fixation import FixationPolicy
from ..manifest import DecoderShape
from . import layers, ops
from .attention import IMPLEMENTATION, Banks, State, TwoBankCache
from .bodies import functions
from .graph import clean
from .quiet import quiet
from .schemas import DOMAIN, OPSET, OPSET_VERSION

STATE_INPUTS = (*ops.STATE, "num_fixations", "fixation_slots")

# Symbolic shapes of the graph's inputs and outputs.
_SHAPES: dict[str, tuple[str | int, ...]] = {
    "input_ids": ("batch", "n"),
    "position_ids": (3, "batch", "n"),
    "visual_length": ("batch",),
    "text_length": ("batch",),
    "visual_valid": ("batch", "n"),
    "text_valid": ("batch", "n"),
    "visual_slots": ("visual_rows",),
    "text_slots": ("text_rows",),
    "num_fixations": ("batch",),
    "fixation_slots": ("k",),
    "active": ("batch",),
    "next_input_ids": ("batch", 1),
    "next_position_ids": (3, "batch", 1),
    "next_text_length": ("batch",),
    "next_text_valid": ("batch", 1),
    "attend_all": (1,),
    "status": (1,),
    "next_status": (1,),
}


@dataclass(frozen=True)
class Form:
    """What tells one decoder graph from another.

    step(language_model, lm_head, policy): the module to trace. kinds: of each layer. inputs, outputs: names in order.
    arguments: the names of the step's arguments, nested as its forward takes them (None for one that is None).
    carried(value): what a value beside the hidden state passes from layer to layer, see `layers.unroll`.
    decoding: n is 1.
    """

    step: Callable[[nn.Module, nn.Module, FixationPolicy], nn.Module]
    kinds: Callable[[DecoderShape, FixationPolicy], list[str]]
    inputs: Callable[[DecoderShape], list[str]]
    outputs: Callable[[DecoderShape, FixationPolicy], list[str]]
    arguments: Callable[[DecoderShape], tuple]
    carried: Callable[[ir.Value], str]
    translations: dict
    decoding: bool


class DecoderStep(nn.Module):
    """The traced module. `decoding` makes it fast.onnx (n = 1, layers by the policy), otherwise dense.onnx.

    Submodules are named so that parameter names equal the Hugging Face model's.
    """

    def __init__(self, language_model: nn.Module, lm_head: nn.Module, policy: FixationPolicy, decoding: bool):
        super().__init__()
        self.model = nn.ModuleDict({"language_model": language_model})
        self.lm_head = lm_head
        self.policy = policy
        self.decoding = decoding
        for layer in language_model.layers:
            layer.register_forward_pre_hook(_begin_layer, with_kwargs=True)
        layer.register_forward_hook(_end_layers)

    def forward(
        self,
        input_ids: Tensor,
        visual_embeds: Tensor | None,
        position_ids: Tensor,
        state: list[Tensor],
        active: Tensor,
        fixation: Tensor | None,
        past: list[list[Tensor]],
    ):
        shared = dict(zip(STATE_INPUTS, state, strict=True))
        banks = [Banks(*layer) for layer in past]
        call = State(self.policy, self.decoding, banks, **shared, fixation=fixation)
        hidden = self.run(call, input_ids, visual_embeds, position_ids)
        following = self.following(hidden, position_ids, shared["text_length"], shared["text_valid"], active)
        present = [list(call.present[i].values()) for i in range(len(past))]
        return *following, call.fixation, present

    def run(self, call, input_ids: Tensor, visual_embeds: Tensor | None, position_ids: Tensor) -> Tensor:
        """The hidden state [B,n,hidden_size] after the last norm; `call` is what the layers' attention is given."""
        language_model = self.model["language_model"]
        embeds = language_model.get_input_embeddings()(input_ids.clamp(min=0))
        if visual_embeds is not None:
            visual = nn.functional.embedding((-1 - input_ids).clamp(min=0), visual_embeds)
            embeds = torch.where((input_ids < 0).unsqueeze(-1), visual, embeds)
        return language_model(
            inputs_embeds=embeds,
            position_ids=position_ids,
            cache=TwoBankCache(call),
            use_cache=True,
            fastocr_state=call,
        ).last_hidden_state

    def following(
        self, hidden: Tensor, position_ids: Tensor, text_length: Tensor, text_valid: Tensor, active: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """logits, next_input_ids, next_position_ids, next_text_length and next_text_valid."""
        # Two dimensions, so that the head becomes a Gemm on the weight as it is: a tied embedding is stored once.
        logits = self.lm_head(hidden[:, -1]).float()
        next_ids = logits.argmax(-1, keepdim=True)
        next_position = position_ids[:, :, -1:] + active.view(1, -1, 1)
        next_text_valid = text_valid[:, -1:] + active.unsqueeze(-1)
        return logits, next_ids, next_position, text_length + active, next_text_valid


def _begin_layer(module, args, kwargs):
    return (torch.ops.fastocr.layer_boundary(args[0]), *args[1:]), kwargs


def _end_layers(module, args, output):
    return torch.ops.fastocr.layer_boundary(output)


def trace_decoder(
    build: Callable[[int], tuple[nn.Module, nn.Module]],
    shape: DecoderShape,
    policy: FixationPolicy,
    *,
    decoding: bool,
    visual_slice: bool = True,
) -> ir.Model:
    """Trace one decoder graph; weights are not read and may be uninitialised.

    build(num_layers): the language model and the output head of a Hugging Face model of that depth, in the export
    dtype: one layer of each kind is traced, and the graph then unrolled. The result's parameters are initializers
    under the model's own names, without values; its attention is the functions of `bodies`.
    """
    model = trace(build, shape, policy, _plain_form(decoding))
    for function in functions(per_kv_head=policy.per_kv_head, visual_slice=visual_slice):
        body = ir.serde.deserialize_function(function)
        model.functions[body.identifier()] = body
    model.graph.opset_imports[DOMAIN] = OPSET_VERSION
    return model


def trace(
    build: Callable[[int], tuple[nn.Module, nn.Module]], shape: DecoderShape, policy: FixationPolicy, form: Form
) -> ir.Model:
    """Trace one layer of each kind and unroll; the ops are left as they are. Arguments as in `trace_decoder`."""
    policy.check(shape.num_layers)
    kinds = form.kinds(shape, policy)
    traced = sorted(set(kinds))
    language_model, lm_head = build(len(traced))
    language_model.config._attn_implementation = IMPLEMENTATION
    step = form.step(language_model, lm_head, _policy_of(traced, policy)).eval()
    model = _export(step, replace(shape, num_layers=len(traced)), form)
    for name, _ in step.named_parameters():
        if name in model.graph.initializers:
            model.graph.initializers[name].const_value = None
    clean(model)
    layers.unroll(model.graph, kinds, traced, _rename, form.carried)
    _declare(model.graph, shape, policy, form)
    return model


def _plain_form(decoding: bool) -> Form:
    def step(language_model: nn.Module, lm_head: nn.Module, policy: FixationPolicy) -> DecoderStep:
        return DecoderStep(language_model, lm_head, policy, decoding)

    def arguments(shape: DecoderShape) -> tuple:
        visual_embeds, fixation = (None, "fixation") if decoding else ("visual_embeds", None)
        past = past_names(shape)
        return "input_ids", visual_embeds, "position_ids", list(STATE_INPUTS), "active", fixation, past

    return Form(
        step=step,
        kinds=lambda shape, policy: layer_kinds(shape, policy, decoding),
        inputs=lambda shape: graph_inputs(shape, decoding),
        outputs=lambda shape, policy: graph_outputs(shape, policy, decoding),
        arguments=arguments,
        carried=_carried,
        translations=ops.TRANSLATION_TABLE,
        decoding=decoding,
    )


def layer_kinds(shape: DecoderShape, policy: FixationPolicy, decoding: bool) -> list[str]:
    """What each layer is in a graph. In dense.onnx only the last focal layer selects."""
    if decoding:
        return [policy.kind(i) for i in range(shape.num_layers)]
    return ["focal" if i == policy.focal_layers[-1] else "dense" for i in range(shape.num_layers)]


def _policy_of(kinds: list[str], policy: FixationPolicy) -> FixationPolicy:
    """The policy of a decoder whose layers are of these kinds."""
    focal = tuple(i for i, kind in enumerate(kinds) if kind == "focal")
    dense = tuple(i for i, kind in enumerate(kinds) if kind == "dense")
    return replace(policy, focal_layers=focal, dense_layers=dense)


def _rename(name: str, layer: int, new_layer: int) -> str:
    """Weights are `....layers.0....`, caches `past.0....` and `present.0....`."""
    return re.sub(rf"(^past|^present|\.layers)\.{layer}\.", rf"\g<1>.{new_layer}.", name)


def _carried(value: ir.Value) -> str:
    """The fixation passes from a focal layer to the layers after it."""
    node = value.producer()
    passes = value.name == "fixation" if node is None else (node.op_type == "FocalAttention" and value.index() == 5)
    return "fixation" if passes else ""


def _declare(graph: ir.Graph, shape: DecoderShape, policy: FixationPolicy, form: Form) -> None:
    """Order inputs and outputs as documented, and give them their symbolic shapes."""
    for values, names in ((graph.inputs, form.inputs(shape)), (graph.outputs, form.outputs(shape, policy))):
        by_name = {value.name: value for value in values}
        values.clear()
        values.extend(by_name[name] for name in names)
        for value in values:
            value.shape = ir.Shape(_symbolic_shape(value.name, shape, form.decoding))
    for node in graph:
        if node.op_type == "FocalAttention":
            node.outputs[5].shape = ir.Shape(_symbolic_shape("fixation", shape, form.decoding))


def _export(step: nn.Module, shape: DecoderShape, form: Form) -> ir.Model:
    args, dynamic = _example(shape, next(step.lm_head.parameters()).dtype, form)
    with torch.no_grad(), quiet():
        exported = torch.export.export(step, args, dynamic_shapes=dynamic, strict=False)
        program = torch.onnx.export(
            exported,
            args=(),
            input_names=form.inputs(shape),
            output_names=form.outputs(shape, step.policy),
            opset_version=OPSET,
            optimize=False,
            verbose=False,
            custom_translation_table=form.translations | layers.TRANSLATION_TABLE,
        )
    return program.model


def graph_inputs(shape: DecoderShape, decoding: bool) -> list[str]:
    """Input names in order."""
    names = ["input_ids", "position_ids", *STATE_INPUTS, "active"]
    names = [*names, "fixation"] if decoding else [names[0], "visual_embeds", *names[1:]]
    return names + [name for layer in past_names(shape) for name in layer]


def past_names(shape: DecoderShape) -> list[list[str]]:
    """The banks of each layer."""
    return [[f"past.{i}.{bank}" for bank in ops.BANKS] for i in range(shape.num_layers)]


def graph_outputs(shape: DecoderShape, policy: FixationPolicy, decoding: bool) -> list[str]:
    """Output names in order; gathered layers have no present visual banks."""
    names = ["logits", "next_input_ids", "next_position_ids", "next_text_length", "next_text_valid"]
    names.append("next_fixation" if decoding else "fixation")
    for i in range(shape.num_layers):
        gathered = decoding and policy.kind(i) == "gathered"
        names += [f"present.{i}.{bank}" for bank in (ops.TEXT if gathered else ops.BANKS)]
    return names


def _symbolic_shape(name: str, shape: DecoderShape, decoding: bool) -> tuple[str | int, ...]:
    if name.startswith(("past.", "present.")):
        capacity = "visual_capacity" if "visual" in name else "text_capacity"
        return ("batch", shape.num_key_value_heads, capacity, shape.head_dim)
    if name in ("fixation", "next_fixation"):
        return ("batch", shape.num_key_value_heads, "k")
    if name == "logits":
        return ("batch", shape.vocab_size)
    if name == "visual_embeds":
        return ("visual_tokens", shape.hidden_size)
    return tuple(1 if decoding and dim == "n" else dim for dim in _SHAPES[name])


def _example(shape: DecoderShape, dtype: torch.dtype, form: Form) -> tuple[tuple, tuple]:
    """Arguments to trace with, and which of their dimensions vary.

    Only batch and n are varied: nothing but the three ops sees the others, and symbols make tracing slow. Sizes
    differ, so that none is taken for another.
    """
    sizes = {"batch": 2, "n": 1 if form.decoding else 3, "k": 4, "visual_rows": 7, "text_rows": 9, "visual_tokens": 5}
    sizes |= {"visual_capacity": 21, "text_capacity": 23}
    dims = {"batch": Dim("batch")} if form.decoding else {"batch": Dim("batch"), "n": Dim("n")}

    def make(name: str | None) -> tuple[Tensor | None, dict | None]:
        if name is None:
            return None, None
        symbolic = _symbolic_shape(name, shape, False)
        kind = dtype if name == "visual_embeds" or name.startswith("past.") else torch.int64
        tensor = torch.zeros([sizes.get(dim, dim) for dim in symbolic], dtype=kind)
        varied = {} if name.startswith("past.") else dims
        return tensor, {axis: varied[dim] for axis, dim in enumerate(symbolic) if dim in varied}

    names = form.arguments(shape)
    return _each(names, lambda name: make(name)[0]), _each(names, lambda name: make(name)[1])


def _each(names, make: Callable):
    if isinstance(names, (tuple, list)):
        return type(names)(_each(branch, make) for branch in names)
    return make(names)
