"""Pages read through TensorRTSession, on a library of numpy that runs the ONNX graphs, are what ONNX Runtime reads."""

from __future__ import annotations

import gc
import json
import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import FakeCuda, FakeTensorRT, write_engine
from PIL import Image

from fastocr_trt import reference
from fastocr_trt.backends import FOLDERS, BackendRecord, EngineFile
from fastocr_trt.demo.pages import generate_page
from fastocr_trt.errors import EngineError, FastOCRError, PageError
from fastocr_trt.manifest import FileRecord, Manifest
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime.onnxruntime_session import OnnxRuntimeSession
from fastocr_trt.runtime.tensorrt_library import Library
from fastocr_trt.runtime.tensorrt_session import TensorRTSession

BACKEND, VERSION = "tensorrt", FakeTensorRT.__version__
ROOM = {"max_visual_tokens": 128, "max_text_tokens": 128, "max_batch": 3, "prefill_chunk": 48}
PLAIN = {"vision": {"vision": {}}, "dense": {"prefill": {}, "decode": {}}, "fast": {"decode": {}}}
PLUGIN = {"vision": {"vision": {}}, "decoder": {"prefill": {}, "decode": {"input_ids": [[1, 1], [3, 1]]}}}


@pytest.fixture(scope="module")
def manifest(demo_engine_dir):
    """The demo's, with little room: the graphs take any capacity."""
    whole = Manifest.read(demo_engine_dir)
    return replace(whole, capacities=replace(whole.capacities, **ROOM))


@pytest.fixture(scope="module")
def plain(manifest, demo_engine_dir):
    """The engine in ONNX Runtime."""
    tokenizer = Engine.load(demo_engine_dir, threads=1, backend="onnxruntime").tokenizer
    return Engine(manifest, OnnxRuntimeSession(demo_engine_dir, manifest, "cpu", 1), tokenizer)


@pytest.fixture(scope="module")
def pages():
    return [generate_page(seed, visual_tokens=64).image for seed in (10_000, 10_001, 10_002)]


@pytest.fixture
def load(plain, demo_engine_dir, tmp_path):
    """Makes engines on the fake; at the end nothing may be held."""
    opened = []

    def load(cuda=None, engines=PLAIN, alter=lambda engine: None, policy=None, manifest=None, **options):
        cuda = cuda or FakeCuda()
        files = {}
        for name, profiles in engines.items():
            path = tmp_path / FOLDERS[BACKEND] / f"{name}.engine"
            onnx = demo_engine_dir / f"{'decoder_plugin' if name == 'decoder' else name}.onnx"
            write_engine(path, onnx, profiles)
            file = FileRecord.of(path)
            files[name] = EngineFile(f"{FOLDERS[BACKEND]}/{path.name}", file.size, file.sha256, tuple(profiles), ())
        record = json.loads(json.dumps(BackendRecord(VERSION, ("8.9",), None, files).to_dict()))
        manifest = replace(manifest or plain.manifest, backends={BACKEND: record})
        manifest = replace(manifest, policy=policy or manifest.policy)
        library = Library(BACKEND, FakeTensorRT(cuda, alter=alter), cuda)
        opened.append((cuda, None))
        session = TensorRTSession(tmp_path, manifest, library, **options)
        opened[-1] = (cuda, session)
        engine = Engine(manifest, session, plain.tokenizer)
        engine.cuda, engine.directory = cuda, tmp_path
        return engine

    yield load
    for _, session in opened:
        if session is not None:
            session.close()
    assert [cuda.held() for cuda, _ in opened] == [0] * len(opened)


def texts(results):
    return [(r.token_ids, r.finish_reason, r.timings.decode_steps) for r in results]


@pytest.mark.parametrize(("mode", "group_size"), [("fast", 1), ("fast", 8), ("dense", 8)])
def test_pages_are_what_onnx_runtime_reads(plain, load, pages, mode, group_size):
    engine = load(group_size=group_size)
    for batch in ([pages[0]], [pages[1], Image.new("RGB", (28, 28), "white"), pages[2]], [pages[2]]):
        got, want = (e.parse_batch(batch, mode=mode, max_new_tokens=90) for e in (engine, plain))
        assert texts(got) == texts(want)
    assert got[0].finish_reason == "stop"
    assert got[0].timings.decode_steps % 8, "no page stopped inside a group"
    assert engine.cuda.launches > 120, "steps were not replayed"


@pytest.mark.parametrize("mode", ["fast", "dense"])
def test_the_engine_with_the_plugin_reads_the_same(plain, load, pages, mode):
    engine = load(engines=PLUGIN)
    batch = [pages[1], Image.new("RGB", (28, 28), "white"), pages[2]]
    for some, limit in (([pages[0]], 30), (batch, 14)):
        got, want = (e.parse_batch(some, mode=mode, max_new_tokens=limit) for e in (engine, plain))
        assert texts(got) == texts(want)
    assert engine.cuda.launches > 30


def test_both_modes_and_refreshes_of_one_engine_with_the_plugin(plain, load, pages):
    """Without any fixation a fast step is lost, so that one that is dense by mistake shows, and the other way round."""
    policy = replace(plain.manifest.policy, refresh_every=5)
    engine = load(engines=PLUGIN, policy=policy)
    want = Engine(replace(plain.manifest, policy=policy), plain.session, plain.tokenizer)
    seen = []
    for mode in ("fast", "dense", "fast"):
        got, expected = (e.parse(pages[0], mode=mode, keep=0, max_new_tokens=17) for e in (engine, want))
        assert got.token_ids == expected.token_ids
        seen.append(got.token_ids)
    assert seen[0] != seen[1]


@pytest.mark.parametrize("refresh_every", [1, 3, 9])
def test_refreshes_fall_on_the_same_steps(plain, load, pages, refresh_every):
    policy = replace(plain.manifest.policy, refresh_every=refresh_every)
    want = Engine(replace(plain.manifest, policy=policy), plain.session, plain.tokenizer)
    got = load(policy=policy)
    options = {"keep": 0.1, "max_new_tokens": 60}
    assert texts(got.parse_batch(pages[:2], **options)) == texts(want.parse_batch(pages[:2], **options))


@pytest.mark.parametrize("keep", [0, 0.03, 1])
def test_the_fixation_is_the_same_at_every_step(plain, load, pages, keep):
    """Read step by step, places in any order; a longer tensor has more unused places."""
    seen = []
    for engine in (load(group_size=1), plain):
        stream = engine.stream(pages[1], keep=keep, max_new_tokens=20)
        seen.append([])
        for _ in stream._run.steps():
            fixation = engine.session.fixation()[0]
            seen[-1].append([sorted(head[head >= 0].tolist()) for head in fixation])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 20


def test_sampling_draws_the_same_tokens(plain, load, pages):
    options = {"temperature": 2.0, "top_p": 0.95, "seed": 3, "max_new_tokens": 40}
    got, want = (e.parse_batch(pages[:2], **options) for e in (load(), plain))
    assert texts(got) == texts(want)
    assert got[0].token_ids != plain.parse(pages[0], max_new_tokens=40).token_ids


def test_a_stream_that_is_left_and_the_next_page(plain, load, pages):
    engine = load()
    for _ in engine.stream(pages[1]):
        break
    assert engine.parse(pages[0]).token_ids == plain.parse(pages[0]).token_ids


def test_the_text_bank_ends_the_page(load, plain, pages):
    """No group may run past what the bank holds."""
    small = replace(plain.manifest, capacities=replace(plain.manifest.capacities, max_text_tokens=40))
    seen = []
    engine = load(manifest=small)
    for each in engine.session._library.trt.engines:
        original = each.run
        each.run = lambda cuda, at, shapes, run=original: (
            "text_length" in at and seen.append(int(cuda.find(at["text_length"], 8).view(np.int64)[0])),
            run(cuda, at, shapes),
        )
    result = engine.parse(pages[0])
    assert result.finish_reason == "length"
    assert result.token_ids == plain.parse(pages[0], max_new_tokens=len(result.token_ids)).token_ids
    assert max(seen) < 40


def test_two_sessions_take_turns(plain, load, pages):
    first, second = load(), load(engines=PLUGIN)
    streams = [iter(e.stream(p, max_new_tokens=16)) for e, p in ((first, pages[0]), (second, pages[1]))]
    written = ["", ""]
    for pieces in zip(*streams, strict=False):
        written = [w + p for w, p in zip(written, pieces, strict=True)]
    for stream, page, text in zip(streams, pages, written, strict=False):
        rest = "".join(stream)
        assert (text + rest).startswith(plain.parse(page, max_new_tokens=14).text)


@pytest.mark.parametrize("how", ["told", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"])
def test_without_cuda_graphs_it_reads_all_the_same(plain, load, pages, caplog, how):
    cuda = FakeCuda(fail_call=how)
    with caplog.at_level(logging.WARNING, "fastocr_trt"):
        engine = load(cuda, alter=lambda e: setattr(e, "capturable", how != "told"))
        got = engine.parse(pages[0], max_new_tokens=30)
    assert got.token_ids == plain.parse(pages[0], max_new_tokens=30).token_ids
    assert cuda.launches == 0
    assert "fast (decode) runs without a CUDA graph" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("call", "status", "words"),  # the second call is the prompt's text, the twelfth a step
    [
        (2, reference.STATUS_VISUAL_BANK_FULL, "visual bank is full: it holds 128 visual tokens"),
        (12, reference.STATUS_TEXT_BANK_FULL, "text bank is full: it holds 128 text tokens.*--max-new-tokens"),
        (12, reference.STATUS_FIXATION_OUT_OF_RANGE, "fixation named a row beyond its page.*fastocr-export"),
        (1, reference.STATUS_VALID_OUT_OF_RANGE, "valid rows passed its bank"),
        (1, 16, "status 16"),
    ],
)
def test_what_a_kernel_finds_fails_the_page_and_not_the_session(plain, load, pages, call, status, words):
    calls = []

    def alter(engine):
        evaluate = engine.evaluate

        def evaluate_and_find(feeds):
            results = evaluate(feeds)
            calls.append(len(calls))
            if len(calls) == call and "next_status" in results:
                results["next_status"] = results["next_status"] | status
            return results

        if "attend_all" in engine.io:
            engine.evaluate = evaluate_and_find

    engine = load(engines=PLUGIN, alter=alter)
    with pytest.raises(PageError, match=words):
        engine.parse(pages[0], max_new_tokens=20)
    assert engine.parse(pages[1], max_new_tokens=5).token_ids == plain.parse(pages[1], max_new_tokens=5).token_ids


def test_out_of_memory_at_every_allocation(load, plain, pages):
    """Each is told with its sizes, leaves nothing of its group behind, and a smaller batch still reads."""
    cuda = FakeCuda()
    engine = load(cuda)
    opened = sum(len(block) for block in cuda.memory.values())
    engine.parse(pages[0], max_new_tokens=2)
    one = sum(len(block) for block in cuda.memory.values())
    engine.close()
    with pytest.raises(EngineError, match=r"working memory takes 0\.0 MiB; export with a smaller"):
        load(FakeCuda(limit=opened - 1))
    for share in np.linspace(0, 0.98, 9):
        tight = FakeCuda(limit=opened + int((one - opened) * share))
        engine = load(tight)
        with pytest.raises(EngineError, match=r"the GPU has .* free, and .* takes .* MiB") as told:
            engine.parse(pages[0], max_new_tokens=2)
        assert "now 128" in str(told.value) or "picture" in str(told.value)
        engine.close()
        assert tight.held() == 0
    roomy = load(FakeCuda(limit=one + 2**20))
    with pytest.raises(EngineError, match=r"a batch of 3 takes .*\(.* KV cache\); read fewer pages at once, or export"):
        roomy.parse_batch(pages, max_new_tokens=2)
    assert roomy.parse(pages[0], max_new_tokens=9).token_ids == plain.parse(pages[0], max_new_tokens=9).token_ids


def test_an_error_in_any_call_is_told_and_leaves_nothing(load, pages):
    cuda = FakeCuda()
    load(cuda).parse(pages[0], max_new_tokens=4)
    names = list(cuda.calls)
    first = {name: names.index(name) for name in reversed(names)}  # of each kind the first, and every 25th of all
    for number in sorted({*first.values(), *range(0, len(names), 25)}):
        broken = FakeCuda(fail_at=number)
        try:
            engine = load(broken)
        except EngineError as error:
            assert "illegal memory access" in str(error)
            assert broken.held() == 0, f"{names[number]} failed while loading"
            continue
        try:
            engine.parse(pages[0], max_new_tokens=4)
            assert names[number] in (
                "cudaStreamBeginCapture",
                "cudaStreamEndCapture",
                "cudaGraphInstantiate",
                "cudaGraphDestroy",
            )
        except EngineError as error:
            assert names[number] in str(error)
        engine.close()
        assert broken.held() == 0, f"{names[number]} failed while reading"


def test_engines_that_do_not_run_or_do_not_load(load, pages, tmp_path):
    engine = load(alter=lambda e: setattr(e, "broken", "visual_embeds" in e.inputs))
    with pytest.raises(EngineError, match=r"dense \(prefill\) did not run"):
        engine.parse(pages[0])
    real = FakeTensorRT._load
    FakeTensorRT._load = lambda self, logger, data: real(self, logger, b"not an engine")
    try:
        with pytest.raises(EngineError, match="magicTag failed; build the engines again with `fastocr-export"):
            load()
    finally:
        FakeTensorRT._load = real


@pytest.mark.parametrize(
    ("part", "field", "value", "words"),
    [
        ("decoder", "head_dim", 32, r"past\.0\.visual_key as float32 \[-1, 2, -1, 64\]"),
        ("decoder", "vocab_size", 100, "logits"),
        (None, "dtype", "fp16", "says float16"),
        ("decoder", "num_layers", 3, "'past.3.visual_key', which this version"),
    ],
)
def test_engines_that_are_not_the_manifests(load, plain, part, field, value, words):
    """Bound as they are they would write beyond their buffers."""
    whole = plain.manifest
    changed = {field: value} if part is None else {part: replace(getattr(whole, part), **{field: value})}
    with pytest.raises(EngineError, match=words):
        load(manifest=replace(whole, **changed))


def test_a_shape_beyond_the_profile(load, pages):
    short = {**PLAIN, "fast": {"decode": {"fixation_slots": [[1], [16]], "fixation": [[1, 2, 1], [3, 2, 16]]}}}
    engine = load(engines=short)
    assert engine.parse(pages[0], keep=0.25, max_new_tokens=9).token_ids  # 16 of 64, not rounded up
    with pytest.raises(EngineError, match=r"fixation.* of shape .*17.*lower --keep"):
        engine.parse(pages[0], keep=0.26, max_new_tokens=9)


def test_a_session_that_is_dropped_gives_everything_back(load, pages):
    engine = load()
    engine.parse(pages[0], max_new_tokens=3)
    cuda = engine.cuda
    assert cuda.held() > 0
    session = TensorRTSession(engine.directory, engine.manifest, engine.session._library)
    assert cuda.held() > 0
    engine.close()
    del session
    gc.collect()
    assert cuda.held() == 0


class TestChoice:
    """Engine.load(backend=...) on a machine that has the fake, or lacks something."""

    @pytest.fixture
    def machine(self, load, demo_engine_dir, tmp_path, monkeypatch):
        """The engine directory with fake engines, and a machine with the fake library, to be altered."""
        cuda = FakeCuda()
        trt = FakeTensorRT(cuda)
        manifest = load(cuda).manifest
        for file in demo_engine_dir.iterdir():
            if file.name != "manifest.json":
                (tmp_path / file.name).symlink_to(file)
        replace(manifest, calibration=None).write(tmp_path)
        modules = {"tensorrt": trt, "cuda.bindings.runtime": cuda}

        def find(name):
            if name not in modules:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            return modules[name]

        monkeypatch.setattr("fastocr_trt.runtime.tensorrt_library.import_module", find)
        return SimpleNamespace(directory=tmp_path, cuda=cuda, trt=trt, modules=modules)

    def test_auto_takes_engines_that_fit(self, machine, pages, plain):
        with Engine.load(machine.directory) as engine:
            assert isinstance(engine.session, TensorRTSession)
            assert (
                engine.parse(pages[0], max_new_tokens=9).token_ids == plain.parse(pages[0], max_new_tokens=9).token_ids
            )

    @pytest.mark.parametrize(
        ("lacks", "words"),
        [
            (lambda m: m.modules.pop("tensorrt"), "'tensorrt' needs the module tensorrt, which is not installed: pip"),
            (lambda m: m.modules.pop("cuda.bindings.runtime"), "needs the module cuda.* pip install .*cuda-python"),
            (lambda m: setattr(m.cuda, "devices", 0), r"no GPU here \(driver too old\).*nvidia-smi"),
            (lambda m: setattr(m.cuda, "capability", (12, 0)), "8.9.*12.0.*fastocr-export"),
            (lambda m: setattr(m.trt, "__version__", "11.0.0"), "10.13.0.*11.0.0.*fastocr-export"),
        ],
    )
    def test_what_a_machine_lacks(self, machine, lacks, words):
        lacks(machine)
        with pytest.raises(FastOCRError, match=words):
            Engine.load(machine.directory, backend="tensorrt")
        assert isinstance(Engine.load(machine.directory, threads=1).session, OnnxRuntimeSession)

    def test_engines_that_are_not_there_or_changed(self, machine):
        with pytest.raises(EngineError, match=r"no engines of tensorrt-rtx; build them with `fastocr-export"):
            Engine.load(machine.directory, backend="tensorrt-rtx")
        with pytest.raises(EngineError, match=r"backend is 'onnx'; choose one of"):
            Engine.load(machine.directory, backend="onnx")
        (machine.directory / FOLDERS[BACKEND] / "fast.engine").write_text("{}")
        with pytest.raises(EngineError, match=r"fast\.engine"):
            Engine.load(machine.directory, backend="tensorrt")
