"""Decode steps run in groups write what single steps write, whatever ends a page inside a group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt.runtime.decode import PageState, decode, next_group
from fastocr_trt.runtime.loop_guard import LoopGuard, LoopThresholds
from fastocr_trt.runtime.sampling import Sampler

STOP = 1
THRESHOLDS = LoopThresholds(
    max_period=4, different_words=2, word_turns=3, word_tokens=4, filler_turns=3, filler_tokens=4
)


class Scripted:
    """Steps through a script of tokens [steps, B]; a finished page stands still, a running one counts its rows."""

    def __init__(self, script, group_size):
        self.script, self.group_size = np.array(script), group_size
        self.rows = np.zeros(self.script.shape[1], int)
        self.active = np.ones(self.script.shape[1], int)
        self.at, self.modes, self.groups = 0, [], []

    def next_tokens(self):
        return self.script[self.at]

    def step(self, mode):
        self.at += 1
        self.modes.append(mode)
        self.rows += self.active

    def steps(self, mode, count):
        assert 1 < count <= self.group_size
        self.groups.append(count)
        tokens = []
        for _ in range(count):
            self.step(mode)
            tokens.append(self.next_tokens())
        return np.array(tokens)

    def set_active(self, active):
        self.active = active.astype(int)


def read(script, limits, group_size, mode, refresh_every):
    session = Scripted(script, group_size)
    pages = [PageState(limit, guard=LoopGuard(None, THRESHOLDS)) for limit in limits]
    steps = list(decode(session, pages, (STOP,), mode, Sampler(), refresh_every))
    return session, [(p.token_ids, p.finish_reason) for p in pages], steps


@given(
    data=st.data(),
    batch=st.integers(1, 3),
    group_size=st.integers(2, 9),
    mode=st.sampled_from(["fast", "dense"]),
    refresh_every=st.sampled_from([0, 1, 2, 3, 7, 8, 20]),
)
@settings(max_examples=150, deadline=None)
def test_groups_write_what_single_steps_write(data, batch, group_size, mode, refresh_every):
    limits = data.draw(st.lists(st.integers(1, 40), min_size=batch, max_size=batch))
    tokens = st.integers(1, 30) if data.draw(st.booleans()) else st.integers(1, 4)  # the second goes in circles
    script = data.draw(
        st.lists(st.lists(tokens, min_size=batch, max_size=batch), min_size=41 + group_size, max_size=41 + group_size)
    )
    single, want, want_steps = read(script, limits, 1, mode, refresh_every)
    grouped, got, got_steps = read(script, limits, group_size, mode, refresh_every)
    assert got == want
    assert got_steps == want_steps
    assert grouped.modes[: len(single.modes)] == single.modes
    assert len(grouped.modes) < len(single.modes) + group_size  # behind by at most one group
    assert all(rows < limit for rows, limit in zip(grouped.rows, limits, strict=True)), "a page ran past its room"


def test_a_page_that_stops_inside_a_group_runs_on_and_its_tokens_are_dropped():
    script = [[5, 6], [7, STOP], [8, 9], [10, 11], [STOP, 12], [13, 14], [15, 16]]
    session, pages, steps = read(script, [20, 20], 3, "fast", 0)
    assert pages == [([5, 7, 8, 10], "stop"), ([6], "stop")]
    assert steps == [0, 1, 2, 3, 4]
    assert session.groups == [3, 3]
    assert session.rows.tolist() == [6, 3]


def test_drawn_tokens_are_fed_one_by_one():
    session = Scripted([[5], [6], [STOP], [7]], 8)
    session.logits = lambda: np.eye(32, dtype=np.float32)[session.next_tokens()] * 100
    session.choose = lambda tokens: None
    pages = [PageState(9)]
    for _ in decode(session, pages, (STOP,), "fast", Sampler(0.5)):
        pass
    assert pages[0].token_ids == [5, 6]
    assert session.groups == []


@pytest.mark.parametrize(
    ("steps", "refresh_every", "want"),
    [(0, 0, ("fast", 8)), (0, 4, ("fast", 3)), (3, 4, ("dense", 1)), (4, 4, ("fast", 3)), (9, 1, ("dense", 1))],
)
def test_a_group_ends_before_a_refresh(steps, refresh_every, want):
    assert next_group("fast", steps, refresh_every, 8) == want
