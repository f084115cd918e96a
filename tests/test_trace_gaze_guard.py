"""Made-up loops: what the gaze tells, and what must not be taken for one."""

from __future__ import annotations

import itertools

import numpy as np

from fastocr_trt.runtime.gaze_guard import GazeGuard

PLACES = 200


def look(*places: int) -> np.ndarray:
    """[2 layers, 1 head, PLACES]: the first head looks at `places`, the second at one place for ever."""
    mass = np.zeros((2, 1, PLACES), np.float32)
    mass[0, 0, list(places)] = 1 / len(places)
    mass[1, 0, 7] = 1
    return mass


def run(guard: GazeGuard, tokens, gazes) -> tuple[int, int] | None:
    """(tokens pushed, tokens to keep) at the alarm."""
    for count, (token, place) in enumerate(zip(tokens, gazes, strict=False), 1):
        if (kept := guard.push(token, look(place))) is not None:
            return count, kept
    return None


def page(tokens: int, per_place: int = 3):
    """Fresh text, a new place every few tokens."""
    return list(range(1000, 1000 + tokens)), [10 + i // per_place for i in range(tokens)]


def test_a_page_that_is_read_to_its_end_raises_no_alarm():
    tokens, gazes = page(550)
    assert run(GazeGuard(), tokens, gazes) is None


def test_equal_lines_that_are_really_there_raise_no_alarm():
    """The text repeats itself; the gaze goes on."""
    assert run(GazeGuard(), [1, 2, 3, 4, 5, 6] * 90, [10 + i // 3 for i in range(540)]) is None


def test_fresh_text_about_one_place_raises_no_alarm():
    tokens, gazes = page(120)
    assert run(GazeGuard(), [*tokens, *range(5000, 5600)], [*gazes, *([30] * 600)]) is None


def test_a_gaze_that_never_moved_tells_nothing():
    assert run(GazeGuard(), [1, 2, 3, 4] * 200, [30] * 800) is None


def loop_with_errors(turns: int, line: int = 20):
    """A line again and again, with one letter of each turn another: no exact cycle."""
    return [5_000 + turn if i == turn % line else i for turn in range(turns) for i in range(line)]


def test_a_line_read_again_and_again_is_kept_once():
    tokens, gazes = page(120)
    circling = itertools.cycle([40 + i // 3 for i in range(20)])
    alarm = run(GazeGuard(), tokens + loop_with_errors(40), itertools.chain(gazes, circling))
    assert alarm is not None
    count, kept = alarm
    assert 120 <= kept <= 145 and count - kept <= 240


def test_a_line_written_by_a_stuck_gaze_is_kept_once():
    tokens, gazes = page(120)
    count, kept = run(GazeGuard(), tokens + loop_with_errors(40), itertools.chain(gazes, itertools.repeat(33)))
    assert 120 <= kept <= 145 and count - kept <= 240
