"""Clean a traced graph, and decide how each of its weights is stored.

A parameter is an initializer without a value: it comes from the checkpoint, and `weights.write_weights` puts it into
the file that all graphs share. Graphs that name the same stored weight share one copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import optimize_ir

from .fusions import fuse

Form = Literal["plain", "transposed", "packed", "scales"]
BLOCK_SIZE = 32  # rows of a weight that share one scale


@dataclass(frozen=True)
class Stored:
    """One entry of the weights file: `form` of the checkpoint's parameter `source`, under the initializer `name`.

    plain is the parameter as it is, transposed [in,out] for MatMul; packed and scales are MatMulNBits' inputs of
    `bits` bits.
    """

    name: str
    source: str
    form: Form
    bits: int = 0


def clean(model: ir.Model) -> None:
    """Fold, simplify and name afresh in place; forget where the trace came from."""
    optimize_ir(model, inline=False)
    fuse(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    _forget_origin(model)


def place_weights(model: ir.Model, aliases: Mapping[str, str], bits: int = 0) -> list[Stored]:
    """Point every use of a parameter at the form it is stored in, and list those forms.

    aliases: parameters that are another's storage (a tied head is its embedding). bits: 4 or 8 quantises the weights
    of matrix products to MatMulNBits; 0 keeps them. Weights of products are stored [in,out], so that no Transpose
    is left for a runtime to fold into a second copy; a Gemm reads [out,in] as it is.
    """
    graph, stored = model.graph, {}
    for name, value in [(n, v) for n, v in graph.initializers.items() if v.const_value is None]:
        for node, index in list(value.uses()):
            product = _product(node, index)
            if product is not None and bits:
                _quantise(graph, product, value, aliases.get(name, name), bits, stored)
            elif node.op_type == "Transpose":
                _use(graph, node.outputs[0], value, aliases.get(name, name), "transposed", stored)
            else:
                entry = _initializer(graph, value, aliases.get(name, name), "plain", stored)
                node.replace_input_with(index, entry)
        if not value.uses() and name not in stored:
            graph.initializers.pop(name)
    common.RemoveUnusedNodesPass()(model)
    return list(stored.values())


def _product(node: ir.Node, index: int) -> ir.Node | None:
    """The matrix product that a weight feeds as its right operand, directly or through a Transpose; else None."""
    if node.op_type == "Gemm" and index == 1 and node.attributes.get_int("transB", 0):
        return node if len(node.inputs) < 3 or node.inputs[2] is None else None
    if node.op_type != "Transpose":
        return None
    uses = list(node.outputs[0].uses())
    if len(uses) == 1 and uses[0].node.op_type == "MatMul" and uses[0].idx == 1:
        return uses[0].node
    return None


def _quantise(graph: ir.Graph, node: ir.Node, weight: ir.Value, source: str, bits: int, stored: dict) -> None:
    outputs, inputs = weight.shape[0], weight.shape[1]
    blocks = -(-inputs // BLOCK_SIZE)
    packed = _entry(graph, Stored(f"{source}.int{bits}", source, "packed", bits), stored)
    packed.dtype, packed.shape = ir.DataType.UINT8, ir.Shape([outputs, blocks, BLOCK_SIZE * bits // 8])
    scales = _entry(graph, Stored(f"{source}.int{bits}_scales", source, "scales", bits), stored)
    scales.dtype, scales.shape = weight.dtype, ir.Shape([outputs, blocks])
    attributes = {"K": inputs, "N": outputs, "bits": bits, "block_size": BLOCK_SIZE, "accuracy_level": 4}
    product = ir.node("MatMulNBits", [node.inputs[0], packed, scales], attributes, domain="com.microsoft")
    product.outputs[0].dtype, product.outputs[0].shape = node.outputs[0].dtype, node.outputs[0].shape
    ir.convenience.replace_nodes_and_values(graph, node, [node], [product], node.outputs, product.outputs)
    graph.opset_imports["com.microsoft"] = 1


def _use(graph: ir.Graph, old: ir.Value, weight: ir.Value, source: str, form: Form, stored: dict) -> None:
    ir.convenience.replace_all_uses_with(old, _initializer(graph, weight, source, form, stored))


def _initializer(graph: ir.Graph, weight: ir.Value, source: str, form: Form, stored: dict) -> ir.Value:
    transposed = form == "transposed"
    entry = _entry(graph, Stored(f"{source}.T" if transposed else source, source, form), stored)
    entry.dtype, entry.shape = weight.dtype, ir.Shape(reversed(weight.shape)) if transposed else weight.shape
    return entry


def _entry(graph: ir.Graph, entry: Stored, stored: dict[str, Stored]) -> ir.Value:
    stored[entry.name] = entry
    if entry.name not in graph.initializers:
        graph.initializers[entry.name] = ir.Value(name=entry.name)
    return graph.initializers[entry.name]


def _forget_origin(model: ir.Model) -> None:
    """Drop what the exporter notes on every node: source paths, stack traces, names of its own."""
    common.ClearMetadataAndDocStringPass()(model)
    graph = model.graph
    model.metadata_props.clear()
    graph.metadata_props.clear()
    for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
        value.metadata_props.clear()
    for node in graph.all_nodes():
        for value in node.outputs:
            value.metadata_props.clear()
    model.producer_name, model.producer_version = "fastocr-trt", None
