"""Engines built by NVIDIA's own TensorRT-RTX, where it is installed; no GPU is needed for that."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="building engines needs the extra `export`")

import onnx
from onnx import helper

from fastocr_trt.backends import BackendRecord
from fastocr_trt.errors import ExportError, MissingDependencyError
from fastocr_trt.export import build, build_engine, build_library
from fastocr_trt.manifest import Manifest

ROOT = Path(__file__).parents[1]
LAYERS = 6
# No torch: an engine directory is all that building needs. A crash of the library ends this process, not pytest.
SCRIPT = """
import sys
sys.modules["torch"] = None
from fastocr_trt.cli.export import main
sys.exit(main(sys.argv[1:]))
"""


def run_export(*argv: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", SCRIPT, *map(str, argv)], capture_output=True, text=True)


def has_rtx() -> bool:
    try:
        build_library.import_builder("tensorrt-rtx")
    except MissingDependencyError:
        return False
    return True


needs_rtx = pytest.mark.skipif(not has_rtx(), reason="tensorrt_rtx (pip's tensorrt-rtx-cu13) is not installed")


@needs_rtx
class TestRtx:
    """The real parser and builder, in a process of their own."""

    def test_engines_from_bodies(self, directory):
        done = run_export(
            directory, "--backend", "tensorrt-rtx", "--plugin", "none", "--compute-capability", "8.9,12.0"
        )
        assert done.returncode == 0, done.stderr
        manifest = Manifest.read(directory)
        manifest.check_files(directory, backend="tensorrt-rtx")
        record = BackendRecord.from_dict("tensorrt-rtx", manifest.backends["tensorrt-rtx"])
        assert (record.compute_capabilities, record.plugin_version) == (("8.9", "12.0"), None)
        profiles = {name: engine.profiles for name, engine in record.engines.items()}
        assert profiles == {"vision": ("vision",), "dense": ("prefill", "decode"), "fast": ("decode",)}
        for name, engine in record.engines.items():
            graph = onnx.load(directory / f"{name}.onnx", load_external_data=False).graph
            wanted = [("input", put.name) for put in graph.input] + [("output", put.name) for put in graph.output]
            assert [(tensor.mode, tensor.name) for tensor in engine.tensors] == wanted
        bank = next(t for t in record.engines["fast"].tensors if t.name == "past.0.visual_key")
        room = manifest.capacities
        assert bank.shape == (-1, 2, room.max_visual_tokens + room.prefill_chunk, 64) and bank.dtype == "float32"
        assert "building tensorrt_rtx/dense.engine" in done.stderr and "GB of memory" in done.stderr
        assert sorted(path.name for path in directory.iterdir() if path.name.startswith(".")) == []

    def test_one_decoder_engine_with_the_plugin(self, directory):
        done = run_export(directory, "--backend", "tensorrt-rtx", "--plugin", _plugin(), "--compute-capability", "8.6")
        assert done.returncode == 0, done.stderr
        record = BackendRecord.from_dict("tensorrt-rtx", Manifest.read(directory).backends["tensorrt-rtx"])
        assert set(record.engines) == {"vision", "decoder"} and record.plugin_version == "1"
        decoder = record.engines["decoder"]
        assert decoder.profiles == ("prefill", "decode")
        assert decoder.size < 2 * build.estimate(build.plan_engines(directory, Manifest.read(directory), True)).disk
        assert {"attend_all", "status", "next_status", "next_fixation"} <= {tensor.name for tensor in decoder.tensors}

    def test_every_layer_is_a_plugin(self, directory):
        """Counted in the network that NVIDIA's parser makes of decoder_plugin.onnx."""
        script = """
import sys
from pathlib import Path
import tensorrt_rtx as trt
from fastocr_trt.export import build, build_engine
from fastocr_trt.manifest import Manifest
directory = Path(sys.argv[1])
library = build.prepare("tensorrt-rtx", Path(sys.argv[2])).library
plan = build.plan_engines(directory, Manifest.read(directory), True)[1]
builder = trt.Builder(library.logger)
network = builder.create_network(1)
assert trt.OnnxParser(network, library.logger).parse(plan.model.SerializeToString(), str(plan.path))
print(build_engine.plugin_layers(trt, network))
"""
        done = subprocess.run([sys.executable, "-c", script, directory, _plugin()], capture_output=True, text=True)
        assert done.stdout.strip() == str(LAYERS), done.stderr

    def test_a_file_that_is_no_library(self, directory, tmp_path):
        (tmp_path / "x.so").write_text("no")
        done = run_export(directory, "--backend", "tensorrt-rtx", "--plugin", tmp_path / "x.so")
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "cannot load the plugin library" in done.stderr and "file too short" in done.stderr

    def test_an_input_that_the_parser_drops_is_an_error(self, tmp_path):
        """Attention's nonpad_kv_seqlen parses and builds, and is not used."""
        heads = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 4, 64]) for name in "qkvo"]
        length = helper.make_tensor_value_info("length", onnx.TensorProto.INT64, [1])
        node = helper.make_node("Attention", ["q", "k", "v", "", "", "", "length"], ["o"])
        graph = helper.make_graph([node], "g", [*heads[:3], length], heads[3:])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
        plan = build_engine.EnginePlan("broken", model, tmp_path / "x.onnx", {"only": {}})
        library = build_library.import_builder("tensorrt-rtx")
        with pytest.raises(ExportError, match="broken: the library drops length"):
            build_engine.build_engine(library, plan, build_engine.Settings(("8.9",)), tmp_path / "x.engine")
        assert not (tmp_path / "x.engine").exists()

    def test_a_compute_capability_that_it_does_not_build_for(self):
        with pytest.raises(ExportError, match=r"does not build for compute capability 9\.0; it builds for .*8\.9"):
            build.prepare("tensorrt-rtx", "none", ("8.9", "9.0"))

    def test_a_graph_that_is_none(self, tmp_path):
        value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
        out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
        graph = helper.make_graph([helper.make_node("Nonsense", ["x"], ["y"], domain="fastocr")], "g", [value], [out])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24), helper.make_opsetid("fastocr", 2)])
        plan = build_engine.EnginePlan("decoder", model, tmp_path / "x.onnx", {})
        library = build_library.import_builder("tensorrt-rtx")
        with pytest.raises(ExportError, match=r"cannot read .*Plugin not found"):
            build_engine.build_engine(library, plan, build_engine.Settings(("8.9",)), tmp_path / "x.engine")


def _plugin() -> Path:
    """The CPU build of the plugin, whose host code is that of the GPU's."""
    sys.path.insert(0, str(ROOT))
    from tools.plugin_library import build_plugin

    try:
        return build_plugin()
    except MissingDependencyError as error:
        pytest.skip(str(error))
