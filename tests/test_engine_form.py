"""The oracle's engine form: the plain ops where everything fits, a status bit where it does not."""

import numpy as np
import pytest

from fastocr_trt import reference
from fastocr_trt.reference import engine_form

BATCH, HEADS, KV, DIM, VCAP, TCAP = 2, 4, 2, 8, 12, 10


def call(rows=1, seed=0):
    """Everything an op takes: both banks part full, the new rows seen in the text bank."""
    rng = np.random.default_rng(seed)
    shapes = [(BATCH, h, rows, DIM) for h in (HEADS, KV, KV)] + [
        (BATCH, KV, cap, DIM) for cap in (VCAP, VCAP, TCAP, TCAP)
    ]
    visual_length, text_length = np.array([9, 5]), np.array([4, 2])
    visual_valid = np.repeat(visual_length[:, None], rows, 1)
    text_valid = text_length[:, None] + np.arange(1, rows + 1)
    return [*(rng.standard_normal(s) for s in shapes), visual_length, text_length, visual_valid, text_valid]


def none():
    return np.zeros(1, np.int64)


@pytest.mark.parametrize("rows", [1, 3])
def test_dense_and_focal_are_the_plain_ops(rows):
    inputs, counts = call(rows), np.array([3, 9])
    dense = engine_form("dense", *inputs, none(), scale=0.3)
    for got, want in zip(dense, reference.dense_attention(*inputs, scale=0.3), strict=False):
        np.testing.assert_array_equal(got, want)
    assert dense.fixation is None
    focal = engine_form("focal", *inputs, none(), scale=0.3, num_fixations=counts, fixation_size=10)
    for got, want in zip(focal, reference.focal_attention(*inputs, counts, 10, scale=0.3), strict=False):
        np.testing.assert_array_equal(got, want)
    assert focal.status == 0


def test_gathered_reads_the_fixation_in_decode_and_everything_in_prefill_or_when_told():
    fixation = np.array([[[1, 4, -1], [0, 8, 3]], [[2, -1, -1], [4, 1, 0]]])
    inputs = call()
    plain = reference.gathered_attention(*inputs[:7], *inputs[8:], fixation, scale=0.3)
    dense = reference.dense_attention(*inputs, scale=0.3)
    sparse = engine_form("gathered", *inputs, none(), scale=0.3, fixation=fixation, attend_all=none())
    np.testing.assert_allclose(sparse.output, plain.output)
    np.testing.assert_array_equal(sparse.present_visual_key, dense.present_visual_key)
    told = engine_form("gathered", *inputs, none(), scale=0.3, fixation=fixation, attend_all=np.ones(1, np.int64))
    np.testing.assert_array_equal(told.output, dense.output)
    inputs = call(rows=2)
    prefill = engine_form("gathered", *inputs, none(), scale=0.3, fixation=fixation, attend_all=none())
    np.testing.assert_array_equal(prefill.output, reference.dense_attention(*inputs, scale=0.3).output)


@pytest.mark.parametrize(
    ("place", "value", "bit"),
    [
        (7, VCAP, reference.STATUS_VISUAL_BANK_FULL),
        (8, TCAP, reference.STATUS_TEXT_BANK_FULL),
        (9, VCAP + 1, reference.STATUS_VALID_OUT_OF_RANGE),
        (10, -1, reference.STATUS_VALID_OUT_OF_RANGE),
    ],
)
def test_what_does_not_fit_is_told_and_touches_nothing_else(place, value, bit):
    inputs = call()
    inputs[place] = inputs[place].copy()
    inputs[place][0] = value
    result = engine_form("dense", *inputs, np.array([16]), scale=0.3)
    assert result.status == bit | 16  # an earlier op's bits are kept
    assert np.isfinite(result.output).all()
    if place in (7, 8):
        bank = 1 if place == 7 else 3
        np.testing.assert_array_equal(result[bank][0], inputs[bank + 2][0])


@pytest.mark.parametrize("entry", [9, 40, -2])
def test_a_fixation_beyond_the_page_is_told_and_left_out(entry):
    inputs = call()
    fixation = np.array([[[1, 4, entry], [0, 8, 3]], [[2, -1, -1], [4, 1, 0]]])
    without = np.where(fixation == entry, -1, fixation)
    result = engine_form("gathered", *inputs, none(), scale=0.3, fixation=fixation, attend_all=none())
    clean = engine_form("gathered", *inputs, none(), scale=0.3, fixation=without, attend_all=none())
    assert (result.status, clean.status) == (reference.STATUS_FIXATION_OUT_OF_RANGE, 0)
    np.testing.assert_array_equal(result.output, clean.output)
