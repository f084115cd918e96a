"""An attention-only decoder stack in ONNX Runtime: nothing but the three ops, on caches bound in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from fastocr_trt.export.bodies import functions
from fastocr_trt.export.ops import (
    BANKS,
    DENSE_INPUTS,
    DENSE_OUTPUTS,
    FOCAL_INPUTS,
    FOCAL_OUTPUTS,
    GATHERED_INPUTS,
    GATHERED_OUTPUTS,
)
from fastocr_trt.export.schemas import DOMAIN, OPSET
from fastocr_trt.fixation import FixationPolicy

_SIGNATURES = {
    "dense": ("DenseAttention", DENSE_INPUTS, DENSE_OUTPUTS),
    "focal": ("FocalAttention", FOCAL_INPUTS, FOCAL_OUTPUTS),
    "gathered": ("GatheredAttention", GATHERED_INPUTS, GATHERED_OUTPUTS),
}


@dataclass(frozen=True)
class Shape:
    """Of the stack: 28 layers of 16 query and 2 KV heads of 128 are Qwen2.5-VL-3B's 36-layer decoder cut to 7B's 28."""

    layers: int = 28
    heads: int = 16
    kv_heads: int = 2
    head_dim: int = 128


def stack_model(shape: Shape, kinds: Sequence[str], *, visual_slice: bool = True) -> bytes:
    """A model whose layer i is the op `kinds[i]` (dense, focal, gathered) with batch 1 and one query row.

    Layer i's query is the graph's query plus layer i-1's output, so that layers wait for each other as in a decoder.
    """
    float_, int_ = TensorProto.FLOAT, TensorProto.INT64
    kv = [1, shape.kv_heads]
    row = [*kv, 1, shape.head_dim]
    state = {
        "query": (float_, [1, shape.heads, 1, shape.head_dim]),
        "key": (float_, row),
        "value": (float_, row),
        "visual_length": (int_, [1]),
        "text_length": (int_, [1]),
        "visual_valid": (int_, [1, 1]),
        "text_valid": (int_, [1, 1]),
        "visual_slots": (int_, ["visual_rows"]),
        "text_slots": (int_, ["text_rows"]),
    }
    if any(kind != "dense" for kind in kinds):
        state |= {
            "num_fixations": (int_, [1]),
            "fixation_slots": (int_, ["k"]),
            "fixation": (int_, [*kv, "k"]),
        }
    inputs = [helper.make_tensor_value_info(name, *spec) for name, spec in state.items()]
    outputs, nodes = [], []
    query, fixation = "query", "fixation"
    for layer, kind in enumerate(kinds):
        op, op_inputs, op_outputs = _SIGNATURES[kind]
        here = {"query": query, "fixation": fixation, "output": f"output.{layer}"}
        for bank in BANKS:
            capacity = "VCAP" if bank.startswith("visual") else "TCAP"
            info = [float_, [*kv, capacity, shape.head_dim]]
            here |= {bank: f"past.{layer}.{bank}", f"past_{bank}": f"past.{layer}.{bank}"}
            here[f"present_{bank}"] = f"present.{layer}.{bank}"
            inputs.append(helper.make_tensor_value_info(f"past.{layer}.{bank}", *info))
            if f"present_{bank}" in op_outputs:
                outputs.append(helper.make_tensor_value_info(f"present.{layer}.{bank}", *info))
        named_inputs = [here.get(name, name) for name in op_inputs]
        if kind == "focal":
            fixation = here["fixation"] = f"fixation.{layer}"
        named_outputs = [here[name] for name in op_outputs]
        nodes.append(helper.make_node(op, named_inputs, named_outputs, domain=DOMAIN, scale=shape.head_dim**-0.5))
        query = f"query.{layer + 1}"
        nodes.append(helper.make_node("Add", ["query", f"output.{layer}"], [query]))
    outputs.append(helper.make_tensor_value_info(query, float_, state["query"][1]))
    if fixation != "fixation":
        outputs.append(helper.make_tensor_value_info(fixation, int_, [*kv, "k"]))
    return _serialise(nodes, inputs, outputs, functions(visual_slice=visual_slice))


def grouped_query_attention_model(shape: Shape) -> bytes:
    """The same stack of ONNX Runtime's own `GroupQueryAttention`, one cache a layer."""
    float_, int32 = TensorProto.FLOAT, TensorProto.INT32
    wide = [1, 1, shape.heads * shape.head_dim]
    narrow = [1, 1, shape.kv_heads * shape.head_dim]
    cache = [1, shape.kv_heads, "CAP", shape.head_dim]
    inputs = [
        helper.make_tensor_value_info("query", float_, wide),
        helper.make_tensor_value_info("key", float_, narrow),
        helper.make_tensor_value_info("value", float_, narrow),
        helper.make_tensor_value_info("seqlens_k", int32, [1]),
        helper.make_tensor_value_info("total_sequence_length", int32, []),
    ]
    outputs, nodes = [], []
    query = "query"
    for layer in range(shape.layers):
        past = [f"past.{layer}.{part}" for part in ("key", "value")]
        present = [f"present.{layer}.{part}" for part in ("key", "value")]
        inputs += [helper.make_tensor_value_info(name, float_, cache) for name in past]
        outputs += [helper.make_tensor_value_info(name, float_, cache) for name in present]
        node = helper.make_node(
            "GroupQueryAttention",
            [query, "key", "value", *past, "seqlens_k", "total_sequence_length"],
            [f"output.{layer}", *present],
            domain="com.microsoft",
            num_heads=shape.heads,
            kv_num_heads=shape.kv_heads,
            scale=shape.head_dim**-0.5,
        )
        query = f"query.{layer + 1}"
        nodes += [node, helper.make_node("Add", ["query", f"output.{layer}"], [query])]
    outputs.append(helper.make_tensor_value_info(query, float_, wide))
    return _serialise(nodes, inputs, outputs, [])


def _serialise(nodes, inputs, outputs, model_functions) -> bytes:
    opsets = [
        helper.make_opsetid("", OPSET),
        helper.make_opsetid(DOMAIN, 1),
        helper.make_opsetid("com.microsoft", 1),
    ]
    graph = helper.make_graph(nodes, "stack", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11, functions=model_functions)
    if model_functions:
        onnx.checker.check_model(model)
    return model.SerializeToString()


class Step:
    """One decode step of a stack with everything bound: `step()` runs it. `values` are kept alive with it."""

    def __init__(self, model: bytes, values: dict[str, ort.OrtValue], threads: int) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = threads
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.binding = self.session.io_binding()
        self.values = values
        for node in self.session.get_inputs():
            self.binding.bind_ortvalue_input(node.name, values[node.name])
        for node in self.session.get_outputs():
            if node.name.startswith("present."):
                self.binding.bind_ortvalue_output(node.name, values[node.name.replace("present.", "past.")])
            else:
                self.binding.bind_output(node.name)

    def __call__(self) -> None:
        self.session.run_with_iobinding(self.binding)

    def outputs(self) -> dict[str, np.ndarray]:
        """The results of the last run that are not caches."""
        names = [node.name for node in self.session.get_outputs()]
        pairs = zip(names, self.binding.get_outputs(), strict=True)
        return {name: value.numpy() for name, value in pairs if not name.startswith("present.")}


class Banks:
    """The two banks of every layer, filled with random rows, and the inputs of one decode step on them.

    visual_rows, text_rows: rows that count, the new text row among them. The buffers are longer by what an engine
    would have: one prefill chunk of 256, and the text bank as long as its capacity.
    """

    def __init__(
        self, shape: Shape, visual_rows: int, text_rows: int, visual_capacity: int, text_capacity: int
    ) -> None:
        self.shape = shape
        self.visual_rows, self.text_rows = visual_rows, text_rows
        self.capacity = {"visual": visual_capacity + 256, "text": text_capacity + 256}
        source = np.random.default_rng(0)
        self._rows = {
            bank: source.standard_normal((1, shape.kv_heads, self.capacity[bank.split("_")[0]], shape.head_dim), "f4")
            for bank in BANKS
        }
        self.caches = {
            f"past.{layer}.{bank}": _value(self._rows[bank].copy()) for layer in range(shape.layers) for bank in BANKS
        }
        self._query = source.standard_normal((1, shape.heads, 1, shape.head_dim), "f4")
        self._new = source.standard_normal((2, 1, shape.kv_heads, 1, shape.head_dim), "f4")

    def inputs(self, num_fixations: int, *, whole_visual: bool = False) -> dict[str, ort.OrtValue]:
        """Bound values of a graph made by `stack_model`. whole_visual: visual_slots as long as the bank."""
        rows = self.capacity["visual"] if whole_visual else self.visual_rows
        source = np.random.default_rng(1)
        fixation = [source.permutation(self.visual_rows)[:num_fixations] for _ in range(self.shape.kv_heads)]
        arrays = {
            "query": self._query,
            "key": self._new[0],
            "value": self._new[1],
            "visual_length": np.array([self.visual_rows]),
            "text_length": np.array([self.text_rows - 1]),
            "visual_valid": np.array([[self.visual_rows]]),
            "text_valid": np.array([[self.text_rows]]),
            "visual_slots": np.arange(rows),
            "text_slots": np.arange(self.text_rows),
            "num_fixations": np.array([num_fixations]),
            "fixation_slots": np.arange(num_fixations),
            "fixation": np.array([fixation]),
        }
        return {name: _value(array) for name, array in arrays.items()} | self.caches

    def joined(self) -> dict[str, ort.OrtValue]:
        """Inputs of `grouped_query_attention_model`: the visual rows and then the text rows in one cache."""
        rows = self.visual_rows + self.text_rows
        arrays = {
            "query": self._query.reshape(1, 1, -1),
            "key": self._new[0].reshape(1, 1, -1),
            "value": self._new[1].reshape(1, 1, -1),
            "seqlens_k": np.array([rows - 1], np.int32),
            "total_sequence_length": np.array(rows, np.int32),
        }
        joined = {
            part: np.concatenate(
                [self._rows[f"visual_{part}"][:, :, : self.visual_rows], self._rows[f"text_{part}"]], axis=2
            )
            for part in ("key", "value")
        }
        for layer in range(self.shape.layers):
            arrays |= {f"past.{layer}.{part}": array.copy() for part, array in joined.items()}
        return {name: _value(array) for name, array in arrays.items()}


def kinds(shape: Shape, policy: FixationPolicy) -> list[str]:
    """The op of each layer."""
    return [policy.kind(layer) for layer in range(shape.layers)]


def _value(array: np.ndarray) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))
