"""Building engines: the calls of TensorRT on a stand-in, what is refused, and the parts that need no library."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import platform
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx", reason="building engines needs the extra `export`")

import fake_tensorrt
import onnx
from onnx import helper

from fastocr_trt.backends import BackendRecord
from fastocr_trt.cli import export as cli
from fastocr_trt.errors import EngineError, ExportError, FastOCRError, MissingDependencyError
from fastocr_trt.export import build, build_engine, build_graph, build_library, rtx_library_name, vision_bodies
from fastocr_trt.export.build_progress import PhaseShares, progress_monitor
from fastocr_trt.manifest import Manifest
from fastocr_trt.runtime.vision_layout import vision_layout

ROOT = Path(__file__).parents[1]


class TestTensorRT:
    """What is asked of the full library, which runs only where a GPU is."""

    def test_calls_and_record(self, directory, tensorrt, tmp_path):
        trt = tensorrt()
        (tmp_path / "plugin.so").write_text("")
        prepared = build.prepare("tensorrt", tmp_path / "plugin.so", None, 1 << 30)
        shares = []
        record = build.build_engines(directory, prepared, 1 << 30, None, lambda stage, share: shares.append(share))
        assert (record.version, record.compute_capabilities, record.plugin_version) == ("10.13.3.9", ("8.9",), "1")
        assert trt.calls.flags == [2, 2]  # the bit of strong typing, by its name
        assert trt.calls.pools == [("workspace", 1 << 30)] * 2
        vision, prefill, decode = trt.calls.profiles
        assert prefill["input_ids"] == ((1, 1), (1, 256), (8, 256)) and decode["input_ids"] == ((1, 1), (1, 1), (8, 1))
        rows = 1280 + 256
        assert prefill["past.0.visual_key"] == ((1, 2, rows, 64), (1, 2, rows, 64), (8, 2, rows, 64))
        assert decode["fixation"] == ((1, 2, 1), (1, 2, 64), (8, 2, 1280))
        assert vision["pixel_values"] == ((4, 1176), (1280, 1176), (5120, 1176))
        assert 1.0 in shares and None in shares
        used = {node.op_type for function in trt.calls.models[0].functions for node in function.node}
        assert "MultiHeadAttention" not in used and "Softmax" in used  # this library has no attention layer
        manifest = Manifest.read(directory)
        manifest.check_files(directory, backend="tensorrt")
        assert BackendRecord.from_dict("tensorrt", manifest.backends["tensorrt"]) == record

    def test_the_timing_cache_is_read_carried_and_kept_beside_the_engines(self, directory, tensorrt, tmp_path):
        trt = tensorrt()
        for caches in ([b"", b"+", b"++"], [b"+++", b"++++", b"+++++"]):
            trt.calls.caches.clear()
            build.build_engines(directory, build.prepare("tensorrt", "none"))
            assert trt.calls.caches == caches
        assert (directory / "tensorrt" / "timing.cache").read_bytes() == b"++++++"
        elsewhere = tmp_path / "my.cache"
        elsewhere.write_bytes(b"foreign")  # refused by the library: begun anew
        build.build_engines(directory, build.prepare("tensorrt", "none"), timing_cache=elsewhere)
        assert elsewhere.read_bytes() == b"+++"

    def test_a_build_that_fails_changes_nothing(self, directory, tensorrt):
        tensorrt()
        build.build_engines(directory, build.prepare("tensorrt", "none"))
        before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        for options, told in (({"serialized": None}, "no kernel fits"), ({"parses": False}, "what is this node")):
            tensorrt(**options)
            with pytest.raises(ExportError, match=told):
                build.build_engines(directory, build.prepare("tensorrt", "none"))
            assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before

    def test_a_network_where_the_plugin_is_not_used_everywhere(self, directory, tensorrt, tmp_path):
        tensorrt(plugins=5)
        (tmp_path / "plugin.so").write_text("")
        with pytest.raises(ExportError, match="5 plugin layers in place of 6"):
            build.build_engines(directory, build.prepare("tensorrt", tmp_path / "plugin.so"))

    def test_unused_inputs_of_the_graph_itself_may_be_dropped(self, directory, tensorrt):
        trt = tensorrt()
        trt.warnings = ["Unused Input: attend_all", "something else"]
        plan = build.plan_engines(directory, Manifest.read(directory), True)[1]
        with pytest.raises(ExportError, match="drops attend_all"):
            build_engine.check_nothing_dropped(plan, trt.warnings)
        for node in plan.model.graph.node:
            node.input[:] = ["status" if name == "attend_all" else name for name in node.input]
        build_engine.check_nothing_dropped(plan, trt.warnings)

    def test_progress_that_fails_ends_the_build(self, directory, tensorrt):
        tensorrt()

        def stop(stage, share):
            if share is not None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build.build_engines(directory, build.prepare("tensorrt", "none"), progress=stop)
        assert not (directory / "tensorrt").exists() and Manifest.read(directory).backends == {}

    def test_too_little_memory_or_disk(self, directory, tensorrt, monkeypatch):
        tensorrt()
        prepared = build.prepare("tensorrt", "none")
        monkeypatch.setattr(build, "memory", lambda field: 10**8)
        with pytest.raises(ExportError, match=r"needs about 0\.7 GB of memory and 0\.1 GB are available"):
            build.build_engines(directory, prepared)
        usage = shutil.disk_usage(directory)
        monkeypatch.setattr(build.shutil, "disk_usage", lambda path: usage._replace(free=10**7))
        with pytest.raises(ExportError, match=r"the engines need about 0\.1 GB and the disk of"):
            build.build_engines(directory, prepared)


class TestRefusals:
    """Each is one sentence, before anything is exported or built."""

    def test_tensorrt_absent(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tensorrt", None)
        with pytest.raises(MissingDependencyError, match="not installed; pip install tensorrt"):
            build.prepare("tensorrt")

    def test_one_absent_of_several(self, monkeypatch, demo_engine_dir, capsys):
        monkeypatch.setitem(sys.modules, "tensorrt", None)
        assert cli.main([str(demo_engine_dir), "--backend", "all"]) == 2
        assert capsys.readouterr().err.endswith("or build without tensorrt: --backend tensorrt-rtx\n")

    def test_tensorrt_too_old(self, tensorrt):
        tensorrt(version="10.2.0.1")
        with pytest.raises(
            MissingDependencyError, match=r"10\.2\.0\.1 is too old to build with; it must be at least 10\.3"
        ):
            build.prepare("tensorrt")

    def test_tensorrt_without_its_gpu(self, tensorrt, monkeypatch):
        tensorrt()
        with pytest.raises(ExportError, match=r"of compute capability 8\.9, not for 12\.0"):
            build.prepare("tensorrt", "none", ("12.0",))
        monkeypatch.setattr(build, "compute_capabilities", lambda: ())
        with pytest.raises(ExportError, match="for the GPU that it runs on and nvidia-smi finds none"):
            build.prepare("tensorrt", "none")

    def test_little_builder_memory(self):
        with pytest.raises(ExportError, match=r"is 1,024 bytes; .* less than 64 MiB"):
            build.prepare("tensorrt-rtx", "none", None, 1024)

    def test_a_plugin_that_is_not_there(self, tensorrt, tmp_path):
        tensorrt()
        with pytest.raises(FastOCRError, match="there is no plugin library at"):
            build.prepare("tensorrt", tmp_path / "absent.so")

    def test_a_plugin_of_another_version(self, tensorrt, tmp_path, monkeypatch):
        tensorrt()
        (tmp_path / "plugin.so").write_text("")
        monkeypatch.setattr(build_library, "plugin_versions", lambda trt: ["7"])
        with pytest.raises(ExportError, match="has version 7 of the fastocr plugin and this fastocr-trt needs 1"):
            build.prepare("tensorrt", tmp_path / "plugin.so")

    def test_no_plugin_is_noted_and_bodies_are_built(self, tensorrt, monkeypatch):
        tensorrt()

        def absent():
            raise MissingDependencyError("none")

        monkeypatch.setattr(build, "find_plugin", absent)
        prepared = build.prepare("tensorrt")
        assert prepared.plugin is None and "3840 visual tokens" in prepared.note and "cmake" in prepared.note

    def test_quantised_weights(self, directory):
        path = directory / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"weights": "int4"}))
        with pytest.raises(ExportError, match="has int4 weights"):
            build.plan_engines(directory, Manifest.read(directory), False)

    def test_ops_of_onnx_runtime(self, directory):
        model = onnx.load(directory / "dense.onnx", load_external_data=False)
        model.graph.node[0].domain = "com.microsoft"
        onnx.save(model, directory / "dense.onnx")
        with pytest.raises(ExportError, match="which only ONNX Runtime has"):
            build.plan_engines(directory, Manifest.read(directory), False)

    def test_an_export_without_the_plugin_graph(self, directory):
        manifest = Manifest.read(directory)
        files = {name: file for name, file in manifest.files.items() if name != "decoder_plugin"}
        with pytest.raises(ExportError, match=r"has no decoder_plugin\.onnx"):
            build.plan_engines(directory, dataclasses.replace(manifest, files=files), True)

    def test_a_directory_that_is_none(self, tensorrt, tmp_path):
        tensorrt()
        with pytest.raises(EngineError, match="no engine at"):
            build.build_engines(tmp_path / "absent", build.prepare("tensorrt", "none"))

    @pytest.mark.parametrize(
        ("argv", "told"),
        [
            (["--backend", "cuda"], "there is no backend 'cuda'; choose from onnxruntime, tensorrt, tensorrt-rtx, all"),
            (["--compute-capability", "sm89"], "'sm89' is not a list of compute capabilities, for example 8.9,12.0"),
            (["--builder-memory", "much"], "'much' is not a size, for example 4GiB or 512MiB"),
        ],
    )
    def test_bad_values(self, argv, told, capsys):
        with pytest.raises(SystemExit) as caught:
            cli.main(["demo", *argv])
        assert caught.value.code == 2 and told in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("argv", "told"),
        [
            ([], "say which engines to build for it with --backend"),
            (["--backend", "tensorrt-rtx", "--keep", "0.1"], "--keep cannot change it"),
            (["--backend", "tensorrt-rtx", "--max-batch", "2", "-o", "x"], "--max-batch, --output cannot change it"),
        ],
    )
    def test_an_engine_directory_is_not_exported_again(self, demo_engine_dir, argv, told, capsys):
        assert cli.main([str(demo_engine_dir), *argv]) == 2
        assert told in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("argv", "told"),
        [
            (["--compute-capability", "8.9"], "--compute-capability is about engines, and none are built"),
            (["--plugin", "none"], "--plugin is about engines"),
            (["--backend", "tensorrt-rtx", "--weights", "int8"], "--weights int8 is for ONNX Runtime"),
        ],
    )
    def test_options_that_contradict(self, tmp_path, argv, told, capsys):
        assert cli.main(["demo", "-o", str(tmp_path / "x"), *argv]) == 2
        assert told in capsys.readouterr().err and not (tmp_path / "x").exists()


def test_sizes_and_lists_of_the_command():
    assert [cli.byte_size(text) for text in ("4GiB", "512M", "1.5k", "77")] == [4 << 30, 512 << 20, 1536, 77]
    assert cli.backend_list("all") == ("onnxruntime", "tensorrt", "tensorrt-rtx")
    assert cli.capability_list("8.9, 12.0,8.9") == ("8.9", "12.0")


def test_a_share_of_nested_phases_never_falls():
    phases = PhaseShares()
    seen = [phases.start("all", None, 2), phases.start("first", "all", 4)]
    seen += [phases.step("first", 1), phases.finish("first"), phases.step("all", 0)]
    seen += [phases.start("second", "all", 2), phases.start("inner", "second", 1), phases.step("inner", 0)]
    seen += [phases.finish("inner"), phases.step("second", 0), phases.finish("second"), phases.finish("all")]
    assert seen == sorted(seen) and seen[2] == 0.25 and seen[4] == 0.5 and seen[9] == 0.75 and seen[-1] == 1.0


def test_an_error_of_the_callback_stops_the_build_and_is_kept():
    def fail(share):
        raise ValueError("closed")

    stop = threading.Event()
    monitor = progress_monitor(fake_tensorrt.make(), fail, stop)
    monitor.phase_start("all", None, 2)
    assert monitor.step_complete("all", 0) is False and isinstance(monitor.error, ValueError)


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 80), columns=st.integers(1, 80))
def test_every_page_fits_the_vision_profile(demo_engine_dir, rows, columns):
    manifest = Manifest.read(demo_engine_dir)
    room = dataclasses.replace(manifest.capacities, max_visual_tokens=rows * columns)
    ranges = build_graph.vision_ranges(dataclasses.replace(manifest, capacities=room))
    layout = vision_layout(2 * rows, 2 * columns, manifest.vision)
    windows, width = layout.window_rows.shape
    for name, size in (("windows", windows), ("window_patches", width), ("patches", len(layout.window_inverse))):
        low, usual, high = ranges[name]
        assert low <= size <= high and low <= usual <= high


@pytest.mark.skipif(sys.platform != "linux", reason="shared objects of Linux")
def test_a_library_gets_a_second_name(tmp_path):
    machine = rtx_library_name.MACHINES.get(platform.machine())
    if machine is None:
        pytest.skip("no ELF machine number is known here")
    path = tmp_path / "any_file_name"
    path.write_bytes(rtx_library_name.shared_object("libfastocr_second_name.so", "libc.so.6", machine))
    with pytest.raises(OSError):
        ctypes.CDLL("libfastocr_second_name.so")
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    assert ctypes.CDLL("libfastocr_second_name.so").getpid() == os.getpid()


def test_the_loaded_library_is_found_among_mapped_files():
    line = "7f00-7f01 r-xp 00000000 08:01 12 /usr/lib/libtensorrt_rtx.so.2\n"
    assert rtx_library_name.versioned_name(line) == "libtensorrt_rtx.so.2"
    assert rtx_library_name.versioned_name("/usr/lib/libtensorrt_onnxparser_rtx.so.1") is None


def test_the_forms_of_the_vision_bodies_agree():
    import onnxruntime

    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((12, 32)).astype(np.float32) for name in ("query", "key", "value")}
    rows = np.array([[0, 1, 2, 3, 4, -1], [5, 6, 7, 8, 9, -1], [10, 11, -1, -1, -1, -1]])
    feeds |= {"window_rows": rows, "window_inverse": np.array([rows.ravel().tolist().index(i) for i in range(12)])}
    kinds = {name: onnx.TensorProto.INT64 if "window" in name else onnx.TensorProto.FLOAT for name in feeds}
    inputs = [helper.make_tensor_value_info(name, kinds[name], feeds[name].shape) for name in feeds]
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (12, 32)) for name in ("whole", "windowed")]
    nodes = [
        helper.make_node(op, list(names), [out], domain="fastocr", num_heads=4, scale=0.3)
        for op, names, out in (
            ("BidirectionalAttention", vision_bodies.BIDIRECTIONAL_INPUTS, "whole"),
            ("WindowAttention", vision_bodies.WINDOW_INPUTS, "windowed"),
        )
    ]
    opsets = [helper.make_opsetid(*pair) for pair in (("", 24), ("fastocr", 1), ("com.microsoft", 1))]
    results = []
    for form in ("onnxruntime", "standard", "plain"):
        graph = helper.make_graph(nodes, "g", inputs, outputs)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        build_graph.use_vision_bodies(model, form)
        assert ("com.microsoft" in {entry.domain for entry in model.opset_import}) == (form == "onnxruntime")
        results.append(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=1e-5)
