"""Error rates, retention and their intervals, against values worked out by hand and a plain edit distance."""

import builtins
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt import metrics
from fastocr_trt.errors import FastOCRError, MissingDependencyError

TEXT = st.text("ab\n", max_size=12)


def plain_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        new = [i]
        for j, y in enumerate(b, 1):
            new.append(min(row[j] + 1, new[-1] + 1, row[j - 1] + (x != y)))
        row = new
    return row[-1]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXT, TEXT)
def test_edit_distance_is_levenshtein(a, b):
    assert metrics.edit_distance(a, b) == plain_distance(a, b)


def test_rates_are_pooled_over_pages():
    # 1 edit in 1 character and 1 edit in 9: pooled 2/10, not the mean of 1 and 1/9
    assert metrics.character_error_rate(["x", "abcdefghX"], ["a", "abcdefghi"]) == pytest.approx(0.2)
    assert metrics.character_accuracy(["x", "abcdefghX"], ["a", "abcdefghi"]) == pytest.approx(0.8)


def test_rates_of_empty_and_overlong_texts():
    assert metrics.character_error_rate([""], [""]) == 0
    assert metrics.character_error_rate(["aaaa"], ["a"]) == 3
    assert metrics.character_accuracy(["aaaa"], ["a"]) == 0
    assert metrics.character_error_rate(["ab"], [""]) == 2
    assert metrics.normalised_edit_distance(["aaaa", "", "b"], ["a", "", "c"]) == pytest.approx((0.75 + 0 + 1) / 3)
    assert metrics.normalised_edit_distance([], []) == 0


def test_retention_compares_accuracies():
    truths = ["abcdefghij"]
    assert metrics.retention(["abcdefghiX"], ["abcdefghXX"], truths) == pytest.approx(0.9 / 0.8)
    assert metrics.retention([""], ["abcdefghij"], truths) == 0
    assert metrics.retention([""], [""], truths) == 1
    assert math.isinf(metrics.retention(truths, [""], truths))


def test_interval_holds_the_value_repeats_and_narrows_with_pages():
    truths = ["abcdefghij"] * 10
    dense = ["abcdefghij"] * 10
    sparse = ["abcdefghij"] * 7 + ["XXXXXfghij"] * 3
    few = metrics.retention_interval(sparse, dense, truths, seed=3)
    assert few == metrics.retention_interval(sparse, dense, truths, seed=3)
    assert few != metrics.retention_interval(sparse, dense, truths, seed=3, confidence=0.5)
    assert few.value == pytest.approx(0.85)
    assert few.low < 0.85 < few.high <= 1
    many = metrics.retention_interval(sparse * 20, dense * 20, truths * 20, seed=3)
    assert many.value == pytest.approx(0.85)
    assert many.high - many.low < (few.high - few.low) / 3


def test_interval_is_paired():
    """Both readings of a page are drawn together: equal readings give retention 1 with no spread at all."""
    truths = ["abcdefghij", "ab", "abcdefghijklmnop"]
    readings = ["abXXefghij", "zz", "abcdefghijklmnop"]
    assert metrics.retention_interval(readings, readings, truths) == (1, 1, 1)


def test_accuracy_interval_of_known_spread():
    """Pages right or wrong as a coin falls: the interval's width is the binomial's."""
    readings = ["a", "b"] * 200
    interval = metrics.accuracy_interval(readings, ["a"] * 400, seed=1)
    assert interval.value == 0.5
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * math.sqrt(0.25 / 400), rel=0.15)


def test_what_cannot_be_measured_is_said():
    with pytest.raises(FastOCRError, match="2 readings"):
        metrics.character_error_rate(["a", "b"], ["a"])
    with pytest.raises(FastOCRError, match="0 pages"):
        metrics.bootstrap(np.zeros((0, 2)), lambda pages: 0.0)


def test_missing_rapidfuzz_names_the_extra(monkeypatch):
    real = builtins.__import__

    def absent(name, *arguments, **keywords):
        if name.startswith("rapidfuzz"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingDependencyError, match=r"fastocr-trt\[test\]"):
        metrics.character_error_rate(["a"], ["a"])
