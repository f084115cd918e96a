"""The attention of a decode step alone: an engine's graph with everything but its attention ops taken out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from ..manifest import Manifest
from .sessions import FilledSession

DOMAIN = "fastocr"
_TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


def attention_graph(path: Path, manifest: Manifest) -> onnx.ModelProto:
    """The ops and their bodies as `path` (dense.onnx or fast.onnx) has them, without weights.

    Inputs: those of the graph that the ops read, and query [B,H,1,D], key and value [B,KV,1,D], the same for every
    layer. A layer's query is the input plus the output of the layer before, so that layers wait for each other as in
    the decoder.
    """
    model = onnx.load(path, load_external_data=False)
    ops = [node for node in model.graph.node if node.domain == DOMAIN]
    number, shape = _TYPES[manifest.dtype], manifest.decoder
    made = {name for node in ops for name in node.output}
    row = ["batch", shape.num_key_value_heads, 1, shape.head_dim]
    queries = ["batch", shape.num_attention_heads, 1, shape.head_dim]
    inputs = [helper.make_tensor_value_info(name, number, size) for name, size in (("query", queries), ("key", row))]
    inputs.append(helper.make_tensor_value_info("value", number, row))
    nodes, query = [], "query"
    for layer, op in enumerate(ops):
        node = onnx.NodeProto()
        node.CopyFrom(op)
        node.input[:3] = [query, "key", "value"]
        query = f"query.{layer + 1}"
        nodes += [node, helper.make_node("Add", ["query", node.output[0]], [query])]
    read = {name for node in ops for name in node.input[3:]} - made
    inputs += [value for value in model.graph.input if value.name in read]
    outputs = [value for value in model.graph.output if value.name in made]
    outputs.append(helper.make_tensor_value_info(query, number, queries))
    graph = helper.make_graph(nodes, "attention", inputs, outputs)
    return helper.make_model(
        graph, functions=model.functions, opset_imports=model.opset_import, ir_version=model.ir_version
    )


class AttentionStep:
    """Calls run the attention of one decode step of `session`'s engine, on its caches and at its lengths.

    mode: dense or fast. The caches are the session's own: what a call writes lies behind the text that counts.
    """

    def __init__(self, session: FilledSession, directory: Path, mode: str, threads: int | None) -> None:
        manifest, shape = session.manifest, session.manifest.decoder
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.enable_mem_pattern = False
        if threads is not None:
            options.intra_op_num_threads = threads
        model = attention_graph(directory / manifest.files[mode].file, manifest).SerializeToString()
        self._graph = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._binding = self._graph.io_binding()
        source, dtype = np.random.default_rng(0), {"fp32": np.float32, "fp16": np.float16}[manifest.dtype]
        sizes = {"query": shape.num_attention_heads, "key": shape.num_key_value_heads}
        sizes["value"] = sizes["key"]
        self._values = session.step_values()  # kept alive with the binding
        for name, heads in sizes.items():
            rows = source.standard_normal((session.cache.batch, heads, 1, shape.head_dim), np.float32)
            self._values[name] = ort.OrtValue.ortvalue_from_numpy(rows.astype(dtype))
        self._values |= {f"past.{bank}": value for bank, value in session.cache.items()}
        for node in self._graph.get_inputs():
            self._binding.bind_ortvalue_input(node.name, self._values[node.name])
        for node in self._graph.get_outputs():
            if node.name.startswith("present."):
                self._binding.bind_ortvalue_output(node.name, self._values[node.name.replace("present.", "past.")])
            else:
                self._binding.bind_output(node.name)

    def __call__(self) -> None:
        self._graph.run_with_iobinding(self._binding)

    def output(self) -> np.ndarray:
        """[B,H,1,D]: the query and the last layer's output, of the last call."""
        names = [node.name for node in self._graph.get_outputs()]
        return self._binding.get_outputs()[names.index(names[-1])].numpy()
