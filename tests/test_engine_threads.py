"""One engine and several threads: calls wait for each other and for open streams, and none waits for ever."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late

import pytest

from fastocr_trt.demo.pages import SEEDS, generate_page
from fastocr_trt.errors import FastOCRError
from fastocr_trt.runtime import Engine
from fastocr_trt.runtime import turn as turns

LATE = 60.0  # seconds after which something hangs


@pytest.fixture(scope="module")
def engine(demo_engine_dir):
    return Engine.load(demo_engine_dir, threads=1, backend="onnxruntime")


@pytest.fixture(scope="module")
def page():
    return generate_page(SEEDS["tests"][0], visual_tokens=64).image


@pytest.fixture
def other():
    """Runs what it is given in a thread of its own, always the same."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda work, *given: pool.submit(work, *given)


def short(engine, page):
    return engine.parse(page, max_new_tokens=3).token_ids


def opened(engine, page):
    """A stream's pieces, of which one was taken."""
    pieces = iter(engine.stream(page))
    next(pieces)
    return pieces


def test_threads_take_turns(engine, page):
    """Each gets its own page, whole."""
    both = [page, page.rotate(180)]
    alone = [engine.parse(p, max_new_tokens=20).token_ids for p in both]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda p: engine.parse(p, max_new_tokens=20).token_ids, both)) == alone


def test_a_thread_does_not_wait_for_its_own_stream(engine, page):
    pieces = opened(engine, page)
    with pytest.raises(FastOCRError, match="this thread has an open stream"):
        short(engine, page)
    with pytest.raises(FastOCRError, match="this thread has an open stream"):
        next(iter(engine.stream(page)))
    pieces.close()
    assert short(engine, page)


def test_another_thread_waits_until_the_stream_ends(engine, page, other):
    pieces = opened(engine, page)
    call = other(short, engine, page)
    with pytest.raises(Late):
        call.result(0.2)
    assert list(pieces)
    assert call.result(LATE)


def test_a_stream_belongs_to_the_thread_that_reads_it_on(engine, page, other):
    pieces = opened(engine, page)
    assert other(next, pieces).result(LATE)
    with pytest.raises(FastOCRError, match="this thread has an open stream"):
        other(short, engine, page).result(LATE)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(short, engine, page)  # of neither
        other(list, pieces).result(LATE)
        assert call.result(LATE)
    assert short(engine, page) == other(short, engine, page).result(LATE)


@pytest.mark.parametrize("end", ["list", "close"])
def test_another_thread_ends_the_stream(engine, page, other, end):
    pieces = opened(engine, page)
    other(lambda: list(pieces) if end == "list" else pieces.close()).result(LATE)
    assert short(engine, page) == other(short, engine, page).result(LATE)


def test_a_stream_that_nobody_reads_on(engine, page, other, monkeypatch):
    """The thread that opened it waits for another, which then never reads it: told, and not kept for ever."""
    monkeypatch.setattr(turns, "PATIENCE", 0.3)
    pieces = opened(engine, page)
    with pytest.raises(FastOCRError, match=r"a stream .* is open and was not read on for 0.3 s"):
        other(short, engine, page).result(LATE)
    assert "".join(pieces)
    assert other(short, engine, page).result(LATE)


def test_a_thread_that_is_gone_holds_nothing(engine, page, monkeypatch):
    """Python gives a new thread the number of one that ended; the stream is not taken for its."""
    pieces = []
    first = threading.Thread(target=lambda: pieces.append(opened(engine, page)))
    first.start()
    first.join(LATE)
    monkeypatch.setattr(turns, "PATIENCE", 0.1)
    with ThreadPoolExecutor(1) as pool, pytest.raises(FastOCRError, match="was not read on"):
        pool.submit(short, engine, page).result(LATE)
    pieces.pop().close()
    assert short(engine, page)


def test_a_stream_that_fails_frees_the_engine(engine, page, other):
    pieces = iter(engine.stream("no-such-page.png"))
    with pytest.raises(FastOCRError, match="no-such-page"):
        other(next, pieces).result(LATE)
    assert short(engine, page)


def test_a_stream_left_halfway_frees_the_engine(engine, page):
    stream = engine.stream(page)  # kept, as a variable of a notebook would be
    for _ in stream:
        break
    assert short(engine, page)
    with pytest.raises(RuntimeError, match="to the end"):
        _ = stream.result


def test_a_stream_in_a_reference_cycle_is_collected(engine, page, other):
    cycle = [opened(engine, page)]
    cycle.append(cycle)
    call = other(short, engine, page)
    del cycle
    gc.collect()
    assert call.result(LATE) == short(engine, page)


def test_close_and_with_end_a_stream(engine, page, other):
    with engine.stream(page) as stream:
        pieces = iter(stream)
        next(pieces)
    assert short(engine, page) and list(pieces) == []
    stream = engine.stream(page)
    stream.close()
    stream.close()
    with pytest.raises(RuntimeError, match="read once"):
        iter(stream)
    assert other(short, engine, page).result(LATE)


def test_close_while_another_thread_takes_a_piece(engine, page, other):
    began, go_on = threading.Event(), threading.Event()

    def progress(done, total):
        began.set()
        assert go_on.wait(LATE)

    stream = engine.stream(page, progress=progress)
    pieces = iter(stream)
    taken = other(next, pieces)
    assert began.wait(LATE)
    with pytest.raises(FastOCRError, match="another thread is taking a piece"):
        stream.close()
    go_on.set()
    assert taken.result(LATE)
    stream.close()
    assert short(engine, page)
