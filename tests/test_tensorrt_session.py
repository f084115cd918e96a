"""Pages read through TensorRTSession, on a library of numpy that runs the ONNX graphs, are what ONNX Runtime reads."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_tensorrt import FakeCuda, FakeTensorRT, write_engine
from PIL import Image

from fastocr_trt.backends import FOLDERS, BackendRecord, EngineFile
from fastocr_trt.demo.pages import generate_page
from fastocr_trt.manifest import FileRecord
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.tensorrt_library import Library
from fastocr_trt.runtime.tensorrt_session import TensorRTSession

BACKEND = "tensorrt"
ROOM = {"max_visual_tokens": 128, "max_text_tokens": 128, "max_batch": 3, "prefill_chunk": 48}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The demo engine with little room, and fake engines of its three graphs."""
    pytest.importorskip("torch", reason="exporting the demo model needs the extra `export`")
    from fastocr_trt.export.engine_directory import export_engine

    made = tmp_path_factory.mktemp("tensorrt") / "engine"
    export_engine("demo", made, **ROOM)
    return made


PROFILES = {"vision": {"vision": {}}, "dense": {"prefill": {}, "decode": {}}, "fast": {"decode": {}}}


def with_engines(manifest, directory, profiles=None):
    """The manifest with a record of fake engines, whose files are written beside the graphs."""
    engines = {}
    for name, each in (profiles or PROFILES).items():
        path = directory / FOLDERS[BACKEND] / f"{name}.engine"
        write_engine(path, directory / f"{name}.onnx", each)
        file = FileRecord.of(path)
        engines[name] = EngineFile(f"{FOLDERS[BACKEND]}/{path.name}", file.size, file.sha256, tuple(each), ())
    record = BackendRecord("10.13.0", ("8.9",), None, engines).to_dict()
    record["engines"] = {  # as JSON gives it back
        name: {**e, "profiles": list(e["profiles"]), "tensors": []} for name, e in record["engines"].items()
    }
    record["compute_capabilities"] = ["8.9"]
    return replace(manifest, backends={BACKEND: record})


@pytest.fixture(scope="module")
def plain(directory):
    """The engine in ONNX Runtime."""
    return Engine.load(directory, threads=1, backend="onnxruntime")


@pytest.fixture(scope="module")
def pages():
    return [generate_page(seed, visual_tokens=64).image for seed in (10_000, 10_001, 10_002)]


@pytest.fixture
def load(plain, directory):
    """Makes engines on the fake; afterwards nothing may be held."""
    opened, cudas = [], []

    def load(cuda=None, profiles=None, trt=None, **options):
        cuda = cuda or FakeCuda()
        cudas.append(cuda)
        manifest = with_engines(plain.manifest, directory, profiles)
        library = Library(BACKEND, trt or FakeTensorRT(cuda), cuda)
        session = TensorRTSession(directory, manifest, library, **options)
        opened.append(session)
        return Engine(manifest, session, plain.tokenizer)

    yield load
    for session in opened:
        session.close()
    assert [cuda.held() for cuda in cudas] == [0] * len(cudas)


def texts(results):
    return [(r.token_ids, r.finish_reason, r.timings.decode_steps) for r in results]


@pytest.mark.parametrize("mode", ["fast", "dense"])
@pytest.mark.parametrize("group_size", [1, 8])
def test_pages_are_what_onnx_runtime_reads(plain, load, pages, mode, group_size):
    engine = load(group_size=group_size)
    for batch in ([pages[0]], [pages[1], Image.new("RGB", (28, 28), "white"), pages[2]], [pages[2]]):
        got, want = (e.parse_batch(batch, mode=mode, max_new_tokens=90) for e in (engine, plain))
        assert texts(got) == texts(want)
    assert got[0].finish_reason == "stop"
    assert engine.session._library.cudart.launches > 20, "nothing was replayed"
