"""int4 and int8 weights: the packing against the matrix it came from, and a quantised engine that still reads."""

# ruff: noqa: E402  (imports after the check that the extra is there)

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="exporting needs the extra `export`")

import onnx
import onnxruntime as ort
from onnx import helper
from onnx.numpy_helper import from_array

from fastocr_trt import metrics
from fastocr_trt.demo.pages import SEEDS, generate_page
from fastocr_trt.export.engine_directory import export_engine
from fastocr_trt.export.graph import BLOCK_SIZE
from fastocr_trt.export.quantize import BITS, quantize
from fastocr_trt.runtime import Engine


@pytest.mark.parametrize(("name", "tolerance"), [("int4", 0.12), ("int8", 0.012)])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 48), (96, 33), (40, 16)])  # 40 leaves a block half full
def test_a_packed_matrix_multiplies_as_the_matrix_does(name, tolerance, inputs, outputs):
    rng = np.random.default_rng(inputs)
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    packed, scales = quantize(torch.from_numpy(weight), BITS[name])
    node = helper.make_node(
        "MatMulNBits",
        ["x", "packed", "scales"],
        ["y"],
        domain="com.microsoft",
        K=inputs,
        N=outputs,
        bits=BITS[name],
        block_size=BLOCK_SIZE,
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", inputs])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows", outputs])],
        [from_array(packed.numpy(), "packed"), from_array(scales.numpy(), "scales")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((5, inputs)).astype(np.float32)
    want = x @ weight.T
    assert np.linalg.norm(session.run(None, {"x": x})[0] - want) <= tolerance * np.linalg.norm(want)


def test_an_int4_engine_reads_as_the_unquantised_one(demo_engine_dir, tmp_path):
    manifest = export_engine("demo", tmp_path / "int4", weights="int4", max_visual_tokens=128, max_text_tokens=256)
    assert "decoder_plugin" not in manifest.files  # its products are not TensorRT's
    whole = Engine.load(demo_engine_dir, threads=1)
    small = Engine.load(tmp_path / "int4", threads=1)
    assert manifest.weights == "int4"
    assert manifest.files["weights"].size < 0.6 * whole.manifest.files["weights"].size
    pages = [generate_page(SEEDS["tests"][i], visual_tokens=128).image for i in range(3)]
    for mode in ("dense", "fast"):
        want = [r.text for r in whole.parse_batch(pages, mode=mode)]
        got = [r.text for r in small.parse_batch(pages, mode=mode)]
        assert metrics.character_error_rate(got, want) < 0.1
