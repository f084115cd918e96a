"""A TensorRT session that is closed early, twice or by another thread; engines whose parts were swapped."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from fake_gpu import FakeCuda
from test_tensorrt_session import load, manifest, pages, plain  # noqa: F401 (fixtures)

from fastocr_trt.errors import EngineError
from fastocr_trt.runtime.tensorrt_library import Library, _make_log
from fastocr_trt.runtime.tensorrt_session import TensorRTSession


def test_a_closed_engine_says_so(load, pages):  # noqa: F811
    engine = load()
    engine.parse(pages[0], max_new_tokens=2)
    engine.close()
    engine.close()
    for use in (
        lambda: engine.parse(pages[0], max_new_tokens=2),
        lambda: engine.session.step("fast"),
        lambda: engine.session.next_tokens(),
        lambda: engine.session.begin(np.zeros((1, 256)), np.ones(1, np.int64)),
    ):
        with pytest.raises(EngineError, match=r"the engine was closed .* load it again"):
            use()
    assert engine.cuda.held() == 0


def test_a_stream_whose_engine_is_closed_half_way(load, pages):  # noqa: F811
    engine = load()
    stream = iter(engine.stream(pages[0]))
    next(stream)
    engine.close()
    with pytest.raises(EngineError, match="the engine was closed"):
        list(stream)
    assert engine.cuda.held() == 0


def test_a_thread_that_closes_what_another_reads(load, pages):  # noqa: F811
    """It waits for the call that is under way; the reader's next one is refused."""
    begun, told = threading.Event(), []
    engine = load(alter=lambda e: setattr(e, "evaluate", _telling(e.evaluate, begun)))

    def read():
        with pytest.raises(EngineError, match="the engine was closed"):
            engine.parse(pages[0], loop_guard=False)
        told.append(True)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    engine.close()
    reader.join(60)
    assert told == [True] and engine.cuda.held() == 0


def _telling(evaluate, begun):
    def evaluate_and_tell(feeds):
        if "fixation" in feeds:  # a step
            begun.set()
        return evaluate(feeds)

    evaluate_and_tell.tensors = evaluate.tensors
    return evaluate_and_tell


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("visual_embeds", ("output", "FLOAT", (-1, 4096)), r"visual_embeds as float32 \[-1, 4096\].* \[-1, "),
        ("visual_embeds", ("output", "HALF", (-1, 256)), "visual_embeds as float16"),
        ("visual_embeds", None, "no output visual_embeds"),
    ],
)
def test_a_vision_engine_of_another_model(load, field, value, words):  # noqa: F811
    """Its output would be written beyond the buffer that the manifest's sizes ask for."""

    def alter(engine):
        if "pixel_values" in engine.io:
            engine.io = {**engine.io, field: value} if value else {n: v for n, v in engine.io.items() if n != field}
            engine.num_io_tensors = len(engine.io)

    cuda = FakeCuda()
    with pytest.raises(EngineError, match=words):
        load(cuda, alter=alter)
    assert cuda.held() == 0


def test_all_sessions_of_a_process_give_the_library_one_logger(load):  # noqa: F811
    """TensorRT keeps the first it is given: the session it came with may be gone when it is used."""
    engine = load()
    library: Library = engine.session._library
    loggers = []
    real = library.trt.Runtime
    library.trt.Runtime = lambda logger: loggers.append(logger) or real(logger)
    for _ in range(2):
        TensorRTSession(engine.directory, replace(engine.manifest), library).close()
    assert loggers[0] is loggers[1] is _make_log(library.trt)
    loggers[0].log(library.trt.ILogger.Severity.ERROR, "of another session")
    TensorRTSession(engine.directory, engine.manifest, library).close()
    assert loggers[0].because() == ""
