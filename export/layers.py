"""Trace one layer of each kind, then unroll the graph to the model's depth.

Tracing takes seconds a layer, and the layers of a model differ only in their weights, their cache and their kind. A
`LayerBoundary` op marks where each traced layer begins and where the last one ends; it is gone after unrolling.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnxscript
import torch
from torch import Tensor

from .schemas import DOMAIN, OPSET_VERSION, register_schema

_BOUNDARY = "LayerBoundary"


@torch.library.custom_op("fastocr::layer_boundary", mutates_args=())
def layer_boundary(hidden: Tensor) -> Tensor:
    return hidden.clone()


@layer_boundary.register_fake
def _(hidden):
    return torch.empty_like(hidden)


register_schema(_BOUNDARY, ("hidden",), ("same",), {}, ())
_fastocr = onnxscript.values.Opset(DOMAIN, OPSET_VERSION)

TRANSLATION_TABLE = {torch.ops.fastocr.layer_boundary.default: lambda hidden: _fastocr.LayerBoundary(hidden)}


def unroll(
    graph: ir.Graph,
    kinds: Sequence[str],
    traced: Sequence[str],
    rename: Callable[[str, int, int], str],
    carried: Callable[[ir.Value], str] = lambda value: "",
) -> None:
    """Turn a graph of `len(traced)` layers, one of each kind, into one of `len(kinds)` layers, in place.

    rename(name, layer, new_layer): the name that an initializer, input or output of traced layer `layer` has in layer
    `new_layer`; a name that it leaves alone belongs to no layer. carried(value): what a value beside the hidden state
    carries from layer to layer, by a name ("" for nothing); a layer that makes one replaces it for those after it.
    Inputs and outputs of new layers come last, in the order of the layers.
    """
    nodes = list(graph)
    marks = [i for i, node in enumerate(nodes) if node.op_type == _BOUNDARY]
    if len(marks) != len(traced) + 1:
        raise AssertionError(f"{len(traced)} layers were traced and {len(marks)} boundaries were found")
    boundaries = [nodes[i] for i in marks]
    segments = [nodes[begin + 1 : end] for begin, end in itertools.pairwise(marks)]

    def own(value: ir.Value, layer: int) -> bool:
        return bool(carried(value)) or rename(value.name, layer, len(kinds)) != value.name

    segments = _hoist(graph, boundaries, segments, own)
    hidden = boundaries[0].inputs[0]
    carry = {carried(value): value for value in graph.inputs if carried(value)}
    made: list[ir.Value] = []
    last = boundaries[-1]
    for layer, kind in enumerate(kinds):
        template = traced.index(kind)
        mapping: dict[ir.Value, ir.Value | None] = {boundaries[template].outputs[0]: hidden}
        for node in segments[template]:
            for value in node.inputs:
                if value is not None and value not in mapping:
                    what = carried(value)
                    mapping[value] = carry[what] if what else _outside(graph, value, rename, template, layer)
            copy = _copy(node, mapping, layer)
            graph.insert_before(last, copy)
            for old, new in zip(node.outputs, copy.outputs, strict=True):
                mapping[old] = new
                if carried(old):
                    carry[carried(old)] = new
                if old.is_graph_output() and not carried(old):
                    new.name = rename(old.name, template, layer)
                    made.append(new)
        hidden = mapping[boundaries[template + 1].inputs[0]]
    _finish(graph, boundaries, segments, hidden, carry, carried, made)


def _hoist(graph: ir.Graph, boundaries: list[ir.Node], segments: list[list[ir.Node]], own) -> list[list[ir.Node]]:
    """Move what no layer changes (constants, rotary factors) before the first layer; gives what is left of each.

    own(value, layer): whether an outside value belongs to the layer or is carried.
    """
    varying = {boundary.outputs[0] for boundary in boundaries}
    left: list[list[ir.Node]] = []
    for layer, segment in enumerate(segments):
        left.append([])
        for node in segment:
            if any(value is not None and (value in varying or own(value, layer)) for value in node.inputs):
                varying.update(node.outputs)
                left[-1].append(node)
            else:
                graph.remove(node)
                graph.insert_before(boundaries[0], node)
    return left


def _outside(graph: ir.Graph, value: ir.Value, rename, template: int, layer: int) -> ir.Value:
    """What stands for an outside value in the new layer: its own weight or cache, or the same value."""
    name = rename(value.name, template, layer)
    if name == value.name:
        return value
    if value.is_initializer():
        if name not in graph.initializers:
            graph.initializers[name] = ir.Value(name=name, shape=value.shape, type=value.type)
        return graph.initializers[name]
    known = next((other for other in graph.inputs if other.name == name), None)
    if known is None:
        known = ir.Value(name=name, shape=value.shape, type=value.type)
        graph.inputs.append(known)
    return known


def _copy(node: ir.Node, mapping: dict, layer: int) -> ir.Node:
    outputs = [
        ir.Value(name=f"{value.name}.{layer}" if value.name else None, shape=value.shape, type=value.type)
        for value in node.outputs
    ]
    return ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else mapping[value] for value in node.inputs],
        node.attributes.values(),
        outputs=outputs,
        overload=node.overload,
        name=f"{node.name}.{layer}" if node.name else None,
    )


def _finish(graph: ir.Graph, boundaries, segments, hidden: ir.Value, carry, carried, made: list[ir.Value]) -> None:
    """Join the tail to the last layer and drop the traced layers; new outputs come after the tail's."""
    boundaries[-1].outputs[0].replace_all_uses_with(hidden)
    stale = [*boundaries, *(node for segment in segments for node in segment)]
    dropped = {value for node in stale for value in node.outputs}
    kept: list[ir.Value] = []
    for value in graph.outputs:
        if carried(value):
            carry[carried(value)].name = value.name
            kept.append(carry[carried(value)])
        elif value not in dropped:
            kept.append(value)
    graph.outputs.clear()
    graph.outputs.extend([*kept, *made])
    graph.remove(stale, safe=True)
