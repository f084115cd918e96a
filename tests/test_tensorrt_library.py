"""The calls that the session makes, against the real modules where they are installed; the plugin's place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import Context, Engine, FakeCuda, FakeTensorRT
from fake_rtx import RuntimeCache, RuntimeConfig

from fastocr_trt import plugin_library
from fastocr_trt.backends import BackendRecord, EngineFile
from fastocr_trt.errors import EngineError, FastOCRError, MissingDependencyError
from fastocr_trt.runtime.cuda_memory import Cuda, CudaError, Memory
from fastocr_trt.runtime.tensorrt_library import Engines, compute_capability, import_library
from fastocr_trt.runtime.tensorrt_session import TensorRTSession, _widen


def test_the_fake_has_no_call_that_the_real_modules_lack():
    """So that what is tested on the fake is not made up."""
    trt = pytest.importorskip("tensorrt_rtx", reason="compares with tensorrt_rtx")
    cudart = pytest.importorskip("cuda.bindings.runtime", reason="compares with cuda-python")
    ours = {name for name in dir(FakeCuda) if name.startswith("cuda")}
    assert [name for name in sorted(ours) if not hasattr(cudart, name)] == []
    parts = ((Context, trt.IExecutionContext), (Engine, trt.ICudaEngine), (FakeTensorRT.ILogger, trt.ILogger))
    for fake, real in parts:
        names = {name for name in dir(fake) if name.startswith(("get_", "set_", "is_", "create_", "execute_", "Sev"))}
        assert names and [name for name in sorted(names) if not hasattr(real, name)] == []
    for name in ("num_io_tensors", "num_optimization_profiles", "create_runtime_config"):
        assert hasattr(trt.ICudaEngine, name)
    for fake, real in ((RuntimeConfig, trt.IRuntimeConfig), (RuntimeCache, trt.IRuntimeCache)):
        assert [name for name in dir(fake) if name[0] != "_" and not hasattr(real, name)] == []
    assert trt.DynamicShapesKernelSpecializationStrategy.EAGER is not None
    assert trt.ExecutionContextAllocationStrategy.USER_MANAGED is not None
    assert cudart.cudaMemcpyKind.cudaMemcpyDeviceToDevice is not None
    assert cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal is not None
    assert cudart.cudaDeviceAttr.cudaDevAttrComputeCapabilityMajor is not None
    assert {"FLOAT", "HALF", "BF16", "INT64"} <= set(trt.DataType.__members__)


def test_what_the_real_library_says_of_a_broken_engine_is_in_the_sentence(tmp_path):
    pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-python")
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt_rtx")
    library = import_library("tensorrt-rtx")
    (tmp_path / "tensorrt_rtx").mkdir()
    (tmp_path / "tensorrt_rtx" / "vision.engine").write_bytes(b"not an engine at all" * 100)
    record = BackendRecord("1", ("8.9",), None, {"vision": EngineFile("tensorrt_rtx/vision.engine", 1, "", (), ())})
    with pytest.raises(EngineError, match=r"tensorrt_rtx .* cannot load .*magicTag.*fastocr-export .*tensorrt-rtx"):
        Engines(library, tmp_path, record)


def test_a_machine_without_a_gpu():
    cudart = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-python")
    if int(cudart.cudaGetDeviceCount()[0]) == 0:
        pytest.skip("this machine has a GPU")
    with pytest.raises(EngineError, match=r"CUDA finds no GPU here .* use backend 'onnxruntime'"):
        compute_capability(cudart)
    with pytest.raises(CudaError, match=r"cudaStreamCreateWithFlags failed on the GPU: .*CUDA error"):
        Cuda(cudart)


@pytest.mark.parametrize("which", ["tensorrt", "tensorrt-rtx"])
def test_a_library_whose_import_fails(monkeypatch, which):
    def broken(name):
        raise OSError("libnvinfer.so.10: cannot open shared object file")

    monkeypatch.setattr("fastocr_trt.runtime.tensorrt_library.import_module", broken)
    with pytest.raises(
        MissingDependencyError, match=r"import fails \(libnvinfer.*pip install --force-reinstall tensor"
    ):
        import_library(which)


def test_bfloat16_is_rounded_to_nearest_and_comes_back_exactly():
    values = np.array([0.0, 1.0, -2.5, 3.14159, 1 + 2**-8, 1 + 3 * 2**-8, 6e-41, np.inf], np.float32)
    bits = TensorRTSession._as("bfloat16", values)
    back = _widen(bits, "bfloat16")
    assert back.tolist()[:3] == [0.0, 1.0, -2.5]
    assert back[4] == 1.0 and back[5] == np.float32(1 + 2**-6)  # ties to even
    assert np.isinf(back[7])
    np.testing.assert_array_equal(TensorRTSession._as("bfloat16", back), bits)
    np.testing.assert_allclose(back, values, rtol=2**-8, atol=1e-40)


def test_memory_knows_its_names_and_gives_back_in_reverse():
    cuda = FakeCuda()
    memory = Memory(Cuda(cuda))
    first = memory.allocate("a", 10)
    assert memory.reserve("a", 5) == first
    assert memory.reserve("b", 0) % 256 == 0
    memory.reserve("a", 300)
    assert memory.size("a") == 300 and memory.size("c") == 0
    with pytest.raises(ValueError, match="a is allocated already"):
        memory.allocate("a", 1)
    memory.close()
    assert cuda.memory == {} and cuda.calls.count("cudaFree") == 3


class TestPlugin:
    @pytest.fixture(autouse=True)
    def fresh(self, monkeypatch, tmp_path):
        """A package in a checkout of its own, and nothing loaded."""
        monkeypatch.setattr(plugin_library, "_loaded", {})
        (tmp_path / "fastocr_trt").mkdir()
        monkeypatch.setattr(plugin_library, "__file__", str(tmp_path / "fastocr_trt" / "plugin_library.py"))

    def place(self, tmp_path, where):
        path = tmp_path / where / plugin_library.LIBRARY_NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
        return path

    def test_the_installed_library_comes_before_a_build(self, tmp_path):
        with pytest.raises(MissingDependencyError, match=r"not installed and not built; .*cmake -S \. -B build"):
            plugin_library.find_plugin()
        build = self.place(tmp_path, "build/plugins")
        assert plugin_library.find_plugin() == build
        installed = self.place(tmp_path, "fastocr_trt/lib")
        assert plugin_library.find_plugin() == installed
        assert plugin_library.find_plugin(build) == build
        with pytest.raises(MissingDependencyError, match="no plugin library at nowhere"):
            plugin_library.find_plugin("nowhere")

    def test_a_process_loads_it_once(self, tmp_path):
        path = self.place(tmp_path, "build/plugins")
        trt = FakeTensorRT(FakeCuda())
        assert [plugin_library.load_plugin(trt) for _ in range(3)] == [path] * 3
        assert trt.libraries == [str(path)]

    @pytest.mark.parametrize("answer", [None, RuntimeError("undefined symbol")])
    def test_a_library_that_is_refused(self, tmp_path, answer):
        self.place(tmp_path, "build/plugins")

        def load_library(path):
            if answer is None:
                return None
            raise answer

        trt = SimpleNamespace(
            __name__="tensorrt", __version__="9", get_plugin_registry=lambda: SimpleNamespace(load_library=load_library)
        )
        for _ in range(2):  # what failed is not taken for loaded
            with pytest.raises(FastOCRError, match=r"tensorrt 9 .*libfastocr_plugin\.so.*cmake"):
                plugin_library.load_plugin(trt)


def test_the_runtime_imports_no_gpu_library():
    code = (
        "import sys, fastocr_trt.runtime, fastocr_trt.runtime.engine, fastocr_trt.runtime.backend\n"
        "import fastocr_trt.runtime.tensorrt_session, fastocr_trt.plugin_library\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('cuda', 'tensorrt', 'tensorrt_rtx', 'torch', 'onnx')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert shown.stdout.strip() == "[]"


class TestOptions:
    """--backend and --provider of the commands."""

    def test_what_they_mean_together(self, monkeypatch):
        from fastocr_trt.cli import _engines
        from fastocr_trt.runtime import Engine

        asked = []
        monkeypatch.setattr(Engine, "load", lambda directory, **options: asked.append(options))
        for given in (("auto", None), ("auto", "cuda"), ("tensorrt", None), ("onnxruntime", "cpu")):
            _engines.load_engine(Path("engine"), given[1], 2, given[0])
        assert [(o["backend"], o["providers"]) for o in asked] == [
            ("auto", ("cpu",)),
            ("onnxruntime", ("cuda",)),
            ("tensorrt", ("cpu",)),
            ("onnxruntime", ("cpu",)),
        ]
        assert asked[0]["threads"] == 2

    @pytest.mark.parametrize("command", ["parse", "parity"])
    def test_a_provider_of_a_backend_that_has_none(self, command, tmp_path, capsys):
        from importlib import import_module

        from PIL import Image

        page = tmp_path / "page.png"
        Image.new("RGB", (56, 56)).save(page)
        arguments = [str(page), "--engine", str(tmp_path)] if command == "parse" else [str(tmp_path), str(page)]
        main = import_module(f"fastocr_trt.cli.{command}").main
        assert main([*arguments, "--backend", "tensorrt", "--provider", "cuda"]) == 2
        shown = capsys.readouterr().err
        assert "--provider cuda is ONNX Runtime's, and --backend is tensorrt; leave one of them out" in shown
