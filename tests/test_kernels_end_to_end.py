"""A sample page read by the TensorRT session with the compiled kernels in every attention layer.

The session, its buffers, its captured steps and the graph with the plugin's ops are those of a GPU; TensorRT and CUDA
are the fakes of fake_gpu.py, the matrix products ONNX's reference, and the three ops the CUDA kernels, compiled
for the CPU. The text must be what ONNX Runtime reads with the function bodies.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from fake_gpu import FakeCuda, FakeTensorRT, OracleGraph, OrtGraph, write_engine
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from fastocr_trt.backends import BackendRecord, EngineFile
from fastocr_trt.manifest import FileRecord
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.tensorrt_library import Library
from fastocr_trt.runtime.tensorrt_session import TensorRTSession

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # tools/ is not installed

from tools import kernel_library  # noqa: E402

PAGE = ROOT / "examples" / "page-3.png"
ENGINES = {"vision": ("vision.onnx", ("vision",)), "decoder": ("decoder_plugin.onnx", ("prefill", "decode"))}
ROWS = ("query", "key", "value", "past_visual_key", "past_visual_value", "past_text_key", "past_text_value")
STATE = ("visual_length", "text_length", "visual_valid", "text_valid")
EXTRA = {"dense": (), "focal": ("num_fixations", "fixation_slots"), "gathered": ("fixation", "attend_all")}

pytestmark = pytest.mark.skipif(
    kernel_library.missing_tool() is not None, reason=f"{kernel_library.missing_tool()} is not installed"
)


class KernelGraph(OracleGraph):
    """decoder_plugin.onnx with the compiled kernels for its attention; counts the calls of each op."""

    def __init__(self, path: str, library: kernel_library.KernelLibrary):
        self.model = onnx.load(path)
        self.calls = dict.fromkeys(EXTRA, 0)
        ops = [_op(op, library, self.calls) for op in EXTRA]
        self.evaluator = ReferenceEvaluator(self.model, new_ops=ops)


def _op(op: str, library: kernel_library.KernelLibrary, calls: dict[str, int]) -> type[OpRun]:
    names = (*ROWS, *STATE, *EXTRA[op], "status")

    class Attention(OpRun):
        op_domain = "fastocr"

        def _run(self, *inputs, scale, per_kv_head=1, **form):
            calls[op] += 1
            arrays = {name: np.ascontiguousarray(value) for name, value in zip(names, inputs, strict=True)}
            slots = arrays.pop("fixation_slots", ())
            result = library.run(op, scale=scale, per_kv_head=bool(per_kv_head), fixation_size=len(slots), **arrays)
            fixation = (result.fixation,) if op == "focal" else ()
            return (*result[:5], *fixation, result.status)

    Attention.__name__ = f"{op.capitalize()}Attention"
    return Attention


@pytest.fixture(scope="module")
def kernels():
    return kernel_library.KernelLibrary(kernel_library.build())


@pytest.mark.parametrize("mode", ["fast", "dense"])
def test_the_kernels_read_a_sample_page_as_onnx_runtime_does(mode, kernels, demo_engine_dir, tmp_path):
    plain = Engine.load(demo_engine_dir, threads=1, backend="onnxruntime")
    want = plain.parse(PAGE, mode=mode)
    manifest = plain.manifest
    room = replace(manifest.capacities, max_visual_tokens=want.visual_tokens, max_text_tokens=192, max_batch=1)
    graphs = {
        str(demo_engine_dir / "vision.onnx"): OrtGraph(str(demo_engine_dir / "vision.onnx")),
        str(demo_engine_dir / "decoder_plugin.onnx"): KernelGraph(
            str(demo_engine_dir / "decoder_plugin.onnx"), kernels
        ),
    }
    files = {}
    for name, (graph, profiles) in ENGINES.items():
        path = tmp_path / "tensorrt" / f"{name}.engine"
        write_engine(path, demo_engine_dir / graph, {profile: {} for profile in profiles})
        record = FileRecord.of(path)
        files[name] = EngineFile(f"tensorrt/{path.name}", record.size, record.sha256, profiles, ())
    record = json.loads(json.dumps(BackendRecord(FakeTensorRT.__version__, ("8.9",), None, files).to_dict()))
    cuda = FakeCuda()
    library = Library("tensorrt", FakeTensorRT(cuda, evaluate=graphs.__getitem__), cuda)
    manifest = replace(manifest, capacities=room, backends={"tensorrt": record})
    with TensorRTSession(tmp_path, manifest, library) as session:
        got = Engine(manifest, session, plain.tokenizer).parse(PAGE, mode=mode, max_new_tokens=len(want.token_ids) + 1)
    assert got.text == want.text and len(want.text) > 40
    assert got.finish_reason == want.finish_reason == "stop"
    calls = graphs[str(demo_engine_dir / "decoder_plugin.onnx")].calls
    assert calls["gathered"] > calls["focal"] > calls["dense"] >= len(want.token_ids)
