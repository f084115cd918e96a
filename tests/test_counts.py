"""Counts: what is taken for one, what is said where none is given, and how they are put into words."""

from __future__ import annotations

import numpy as np
import pytest

from fastocr_trt.counts import check_count, plural
from fastocr_trt.errors import FastOCRError
from fastocr_trt.fixation import FixationPolicy
from fastocr_trt.runtime.documents import iter_pages
from fastocr_trt.runtime.loop_guard import LoopThresholds
from fastocr_trt.runtime.options import Reading
from fastocr_trt.runtime.sampling import Sampler


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 pages"), (1, "1 page"), (2, "2 pages"), (1024, "1,024 pages"), (np.int64(1), "1 page")]
)
def test_counts_for_people(count, text):
    assert plural(count, "page") == text


@pytest.mark.parametrize("value", [1, np.int64(7), np.uint8(255)])
def test_whole_numbers_of_python_and_numpy(value):
    found = check_count(value, "batch", most=255)
    assert found == value and type(found) is int


@pytest.mark.parametrize("value", [True, 2.0, "2", None, np.float32(2), np.bool_(True), 0, -1])
def test_what_is_no_count(value):
    with pytest.raises(FastOCRError) as told:
        check_count(value, "batch")
    assert str(told.value) == f"batch is {value!r}; it must be a whole number of at least 1"


def test_both_limits_are_told():
    with pytest.raises(FastOCRError, match=r"threads is 9; it must be a whole number from 2 to 8$"):
        check_count(9, "threads", least=2, most=8)


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda: Sampler(seed=-1), "seed is -1; .* of at least 0"),
        (lambda: Reading(max_new_tokens=1.5), "max_new_tokens is 1.5; .* of at least 1"),
        (lambda: LoopThresholds(word_turns=1), "word_turns is 1; .* of at least 2"),
        (lambda: FixationPolicy((2,), min_tokens=False), "min_tokens is False; .* of at least 0"),
        (lambda: iter_pages("page.png", max_pixels=0), "max_pixels is 0; .* of at least 1"),
    ],
)
def test_every_part_says_it_alike(use, told):
    with pytest.raises(FastOCRError, match=told):
        use()


def test_a_policy_of_numpys_numbers_can_be_written():
    assert type(FixationPolicy((2,), min_tokens=np.int64(3)).to_dict()["min_tokens"]) is int
