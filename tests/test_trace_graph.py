"""Outputs added to an ONNX file by its bytes: `onnx` reads back what was meant."""

from __future__ import annotations

import pytest

onnx = pytest.importorskip("onnx", reason="the files are checked with onnx, of the extra `export`")

from fastocr_trt.manifest import Manifest  # noqa: E402
from fastocr_trt.runtime.trace_graph import attention_queries, with_outputs  # noqa: E402


@pytest.mark.parametrize("graph", ["dense", "fast"])
def test_the_queries_are_those_that_onnx_sees(demo_engine_dir, graph):
    path = demo_engine_dir / f"{graph}.onnx"
    ops = [node for node in onnx.load(path, load_external_data=False).graph.node if node.domain == "fastocr"]
    queries = attention_queries(path.read_bytes())
    assert [query.layer for query in queries] == list(range(Manifest.read(demo_engine_dir).decoder.num_layers))
    assert [query.name for query in queries] == [node.input[0] for node in ops]
    scales = [next(a.f for a in node.attribute if a.name == "scale") for node in ops]
    assert [query.scale for query in queries] == scales


@pytest.mark.parametrize(("dtype", "element"), [("fp32", onnx.TensorProto.FLOAT), ("fp16", onnx.TensorProto.FLOAT16)])
def test_an_output_is_added_and_nothing_else_changes(demo_engine_dir, dtype, element):
    data = (demo_engine_dir / "fast.onnx").read_bytes()
    names = [query.name for query in attention_queries(data)][:2]
    before, after = onnx.load_from_string(data), onnx.load_from_string(with_outputs(data, names, dtype))
    added = after.graph.output[len(before.graph.output) :]
    assert [value.name for value in added] == names
    assert all(value.type.tensor_type.elem_type == element for value in added)
    del after.graph.output[len(before.graph.output) :]
    assert after == before


@pytest.mark.parametrize("data", [b"", b"not a model at all", b"\x3a\xff\x01short", bytes(range(256))])
def test_what_is_no_such_model_is_a_value_error(data):
    with pytest.raises(ValueError):
        attention_queries(data)


def test_a_model_cut_short_is_a_value_error(demo_engine_dir):
    data = (demo_engine_dir / "fast.onnx").read_bytes()
    with pytest.raises(ValueError):
        attention_queries(data[: len(data) // 2])
