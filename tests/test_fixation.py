import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastocr_trt.errors import FastOCRError
from fastocr_trt.fixation import FixationPolicy

POLICY = FixationPolicy(focal_layers=(2, 5), dense_layers=(0,), keep=0.05, min_tokens=8)


def test_kinds():
    assert [POLICY.kind(i) for i in range(6)] == ["dense", "gathered", "focal", "gathered", "gathered", "focal"]


@pytest.mark.parametrize(
    ("tokens", "keep", "expected"),
    [
        (768, None, 39),  # ceil(38.4)
        (760, 0.05, 38),  # exactly 5%, though 0.05 * 760 is a little more in floating point
        (100, 0.07, 8),  # 7, raised to the floor
        (1000, 0.07, 70),
        (768, 1, 768),
        (768, 0, 0),
        (5, 0.05, 5),  # the floor never passes the page
        (0, 0.05, 0),
    ],
)
def test_num_fixations(tokens, keep, expected):
    assert POLICY.num_fixations(tokens, keep) == expected


@given(st.integers(0, 20_000), st.floats(0, 1), st.integers(0, 64))
def test_num_fixations_bounds(tokens, keep, floor):
    k = FixationPolicy(focal_layers=(1,), keep=keep, min_tokens=floor).num_fixations(tokens)
    assert 0 <= k <= tokens
    if keep > 0:
        assert k >= min(tokens, floor)
        assert k >= math.floor(keep * tokens)
    if keep == 1:
        assert k == tokens


def test_mean_visual_reads():
    assert POLICY.mean_visual_reads(768, 6, 1.0) == 1.0
    assert POLICY.mean_visual_reads(768, 6, 0.0) == 0.5
    assert POLICY.mean_visual_reads(768, 6) == pytest.approx((3 + 3 * 39 / 768) / 6)
    assert POLICY.mean_visual_reads(0, 6) == 0.0


def test_round_trip():
    assert FixationPolicy.from_dict(POLICY.to_dict()) == POLICY


@pytest.mark.parametrize("num_layers", [1, 2, 3, 6, 12, 28, 36, 80])
def test_evenly_spaced_fits_any_depth(num_layers):
    policy = FixationPolicy.evenly_spaced(num_layers)
    policy.check(num_layers)
    assert len(policy.focal_layers) <= max(1, round(num_layers / 10))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"focal_layers": []}, "no focal layer"),
        ({"focal_layers": [0], "dense_layers": [0]}, "both focal and dense"),
        ({"focal_layers": [2], "keep": 1.5}, "1.5"),
        ({"focal_layers": [2], "keep": "5%"}, "5%"),
        ({"focal_layers": [2], "keep": float("nan")}, "nan"),
        ({"focal_layers": [-1]}, "-1"),
        ({"focal_layers": [2, 2]}, "twice"),
        ({"focal_layers": 3}, "list"),
        ({"focal_layers": [2], "min_tokens": -4}, "-4"),
        ({"focal_layers": [2], "focus": 1}, "focus"),
        ({"keep": 0.5}, "focal_layers"),
    ],
)
def test_bad_policies_say_what_is_wrong(fields, words):
    with pytest.raises(FastOCRError, match=words):
        FixationPolicy.from_dict(fields)


def test_layer_beyond_the_decoder():
    with pytest.raises(FastOCRError, match="6 layers"):
        FixationPolicy(focal_layers=(2, 6)).check(6)
