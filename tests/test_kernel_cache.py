"""TensorRT-RTX's compiled kernels are kept from one run to the next, and nothing about them is ever fatal."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import test_tensorrt_session as sessions
from fake_rtx import FakeRTX, RuntimeCache, RuntimeConfig
from test_tensorrt_session import PLUGIN, load, manifest, pages, plain  # noqa: F401 (fixtures)

from fastocr_trt.backends import BackendRecord, EngineFile
from fastocr_trt.runtime.kernel_cache import DIGEST_SIZE, KernelCache, kernel_cache_file


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The user's cache folder, and TensorRT-RTX in TensorRT's place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sessions, "BACKEND", "tensorrt-rtx")
    monkeypatch.setattr(sessions, "FakeTensorRT", FakeRTX)
    return tmp_path / "cache" / "fastocr-trt" / "tensorrt_rtx"


@pytest.fixture
def run(load):  # noqa: F811
    """Loads the engine and closes it again: how many kernels were compiled."""

    def run() -> int:
        engine = load()
        library = engine.session._library.trt
        engine.close()
        return library.compiled

    return run


def test_the_second_run_compiles_nothing(folder, load, pages):  # noqa: F811
    texts = []
    for compiled in (4, 0):  # vision, prefill, dense, fast
        engine = load()
        texts.append(engine.parse(pages[0], max_new_tokens=8).text)
        engine.close()
        assert engine.session._library.trt.compiled == compiled
    assert texts[0] == texts[1] != ""
    (file,) = folder.iterdir()
    assert file.name.endswith("-10.13.0-sm8.9.cache")


def test_one_cache_serves_all_contexts_and_only_steps_wait_for_their_kernels(folder, load):  # noqa: F811
    engine = load(engines=PLUGIN)
    configs = engine.session._library.trt.configs
    assert len({id(config._cache) for config in configs}) == 1
    assert [c.dynamic_shapes_kernel_specialization_strategy for c in configs] == ["lazy", "lazy", "eager"]


def test_kernels_that_are_there_are_not_written_again(folder, run):
    assert run() == 4
    (file,) = folder.iterdir()
    before = file.stat()
    assert run() == 0
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("damage", ["empty", "short", "changed", "foreign"])
def test_a_file_that_does_not_fit_is_replaced(folder, run, monkeypatch, caplog, damage):
    assert run() == 4
    (file,) = folder.iterdir()
    good = file.read_bytes()
    if damage == "foreign":
        monkeypatch.setattr(RuntimeCache, "_environment", b"GPU 2;")
    else:
        file.write_bytes({"empty": b"", "short": good[: DIGEST_SIZE + 5], "changed": good[:-1] + b"!"}[damage])
    with caplog.at_level(logging.INFO, "fastocr_trt.tensorrt"):
        assert run() == 4
    assert f"{file} is {'of another GPU' if damage == 'foreign' else 'damaged'}" in caplog.text
    assert run() == 0
    assert [path.name for path in folder.iterdir()] == [file.name]


def test_a_folder_that_cannot_be_made(folder, run, caplog):
    folder.parents[1].write_text("a file in the way")
    with caplog.at_level(logging.INFO, "fastocr_trt.tensorrt"):
        assert run() == 4 and run() == 4
    assert "kernels are not kept" in caplog.text


def test_a_home_that_is_not_known(folder, run, monkeypatch, tmp_path):
    """Nothing called ~ appears in the folder at hand."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CACHE_HOME", "~/.cache")
    assert run() == 4
    assert list(work.iterdir()) == []


@pytest.mark.parametrize("call", ["create_runtime_cache", "set_runtime_cache", "deserialize", "serialize"])
def test_a_library_that_fails(folder, run, monkeypatch, call):
    assert run() == 4

    def fail(*_):
        raise RuntimeError("of the library's own")

    monkeypatch.setattr(RuntimeCache if "serialize" in call else RuntimeConfig, call, fail)
    assert run() in (0, 4)


def test_other_engines_versions_and_gpus_have_other_files():
    engine = EngineFile("tensorrt_rtx/vision.engine", 1, "aa", (), ())
    record = BackendRecord("1", ("8.9",), None, {"vision": engine})
    other = dataclasses.replace(record, engines={"vision": dataclasses.replace(engine, sha256="bb")})
    files = [kernel_cache_file(*key) for key in ((record, "1", "8.9"), (record, "2", "8.9"), (record, "1", "12.0"))]
    assert len({*files, kernel_cache_file(other, "1", "8.9")}) == 4
    assert files[0] == kernel_cache_file(record, "1", "8.9")


def test_a_session_that_made_no_context_keeps_nothing(tmp_path):
    KernelCache(tmp_path / "cache").save()
    assert list(tmp_path.iterdir()) == []


def test_the_real_library_has_these_calls():
    """As far as it goes without a GPU: a config comes from an engine, and no engine is loaded without one."""
    trt = pytest.importorskip("tensorrt_rtx", reason="compares with tensorrt_rtx")
    for call, words in (
        (trt.IRuntimeConfig.create_runtime_cache, "-> nvinfer1::IRuntimeCache"),
        (trt.IRuntimeConfig.set_runtime_cache, "-> bool"),
        (trt.IRuntimeCache.deserialize, "-> bool"),
        (trt.IRuntimeCache.serialize, "IHostMemory"),
        (trt.ICudaEngine.create_execution_context, "IRuntimeConfig"),
    ):
        assert words in call.__doc__
