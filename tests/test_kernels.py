"""The CUDA kernels, run on the CPU, against the oracle's engine form."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_calls import BANKS, DTYPES, QUICK, compare, expect, load_kernels, make_call, mass_of_last_row, numbers

from fastocr_trt import reference


@pytest.fixture(scope="module")
def library():
    return load_kernels()


@pytest.mark.parametrize("op", ["dense", "focal", "gathered"])
@pytest.mark.parametrize(
    ("dtype", "dim", "group"),
    [
        ("float32", 16, 1),
        ("float32", 80, 5),
        ("float32", 256, 16),
        ("float16", 32, 3),
        ("float16", 64, 7),
        ("float16", 96, 12),
        ("float16", 72, 2),
        ("bfloat16", 128, 8),
        ("bfloat16", 80, 4),
        ("bfloat16", 256, 16),
        ("float16", 64, 21),  # more heads than a block takes at once
    ],
)
def test_decode_of_each_type_and_width(library, op, dtype, dim, group):
    call = make_call(op, dtype=dtype, dim=dim, group=group, seed=dim + group)
    compare(library, op, call, scale=dim**-0.5, fixation_size=12 if op == "focal" else 0, num_splits=2)


@pytest.mark.parametrize("num_splits", [0, 1, 2, 7, 128])
@pytest.mark.parametrize("op", ["dense", "focal", "gathered"])
def test_any_number_of_splits(library, op, num_splits):
    call = make_call(op, batch=3, vcap=300, tcap=150, k=100, seed=num_splits)
    compare(library, op, call, fixation_size=100 if op == "focal" else 0, num_splits=num_splits)


@QUICK
@given(
    op=st.sampled_from(["dense", "focal", "gathered"]),
    dtype=st.sampled_from(sorted(DTYPES)),
    batch=st.integers(1, 4),
    kv=st.integers(1, 3),
    group=st.integers(1, 16),
    dim=st.integers(1, 32).map(lambda eighth: 8 * eighth),
    vcap=st.integers(2, 200),
    tcap=st.integers(1, 100),
    k=st.integers(0, 200),
    num_splits=st.integers(0, 9),
    per_kv_head=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_decode_of_any_shape(library, op, vcap, k, num_splits, per_kv_head, **shape):
    k = min(k, vcap)
    call = make_call(op, vcap=vcap, k=k, **shape)
    compare(
        library,
        op,
        call,
        fixation_size=k if op == "focal" else 0,
        num_splits=num_splits,
        per_kv_head=per_kv_head,
    )


@QUICK
@given(
    op=st.sampled_from(["dense", "focal", "gathered"]),
    dtype=st.sampled_from(sorted(DTYPES)),
    batch=st.integers(1, 2),
    kv=st.integers(1, 2),
    group=st.integers(1, 5),
    rows=st.integers(2, 40),
    dim=st.sampled_from([16, 32, 40, 64, 80, 128]),
    seed=st.integers(0, 2**32),
)
def test_prefill_of_any_shape(library, op, **shape):
    call = make_call(op, **shape)
    compare(library, op, call, fixation_size=12 if op == "focal" else 0)


def test_a_batch_of_128_pages(library):
    for op in ("dense", "focal", "gathered"):
        call = make_call(op, batch=128, kv=1, group=2, vcap=20, tcap=10, k=6)
        compare(library, op, call, fixation_size=6 if op == "focal" else 0)


@pytest.mark.parametrize("rows", [1, 3])
def test_pages_and_banks_without_a_row(library, rows):
    call = make_call("focal", rows=rows)
    call["visual_valid"][0] = 0
    compare(library, "focal", call, fixation_size=12)
    call["text_valid"][0] = 0  # now page 0 sees nothing at all
    got = compare(library, "focal", call, fixation_size=12)
    assert (got.output[0] == 0).all() and (got.fixation[0] == -1).all()


@pytest.mark.parametrize("k", [0, 1, 90])
@pytest.mark.parametrize("per_kv_head", [True, False])
def test_fixations_of_none_one_and_all(library, k, per_kv_head):
    call = make_call("focal", k=k, counts=numbers(k, k))
    got = compare(library, "focal", call, fixation_size=k, per_kv_head=per_kv_head)
    if k == 90:
        valid = call["visual_length"][0]
        np.testing.assert_array_equal(got.fixation[0, 0, :valid], np.arange(valid))
    compare(library, "gathered", make_call("gathered", k=k))


def test_a_fixation_longer_than_one_round_of_the_selection(library):
    call = make_call("focal", batch=1, kv=1, vcap=5000, k=3000, counts=numbers(2500), group=1, dim=8)
    call["visual_length"][:] = 4990
    call["visual_valid"][:] = 4990
    for bank in ("visual_key", "visual_value"):
        call[f"past_{bank}"] = np.random.default_rng(1).standard_normal((1, 1, 5000, 8)).astype(np.float32)
    compare(library, "focal", call, fixation_size=3000)


def test_ties_go_to_the_lower_row(library):
    call = make_call("focal", batch=1, kv=1, vcap=3000, k=40, counts=numbers(40), group=3)
    call["visual_length"][:] = call["visual_valid"][:] = 2990
    rng = np.random.default_rng(2)
    kinds = rng.standard_normal((3, 16)).astype(np.float32)
    which = rng.integers(1, 3, 3000)
    which[[5, 700, 2400]] = 0  # three rows of kind 0, and many more than 40 of kinds 1 and 2
    call["past_visual_key"][0, 0] = kinds[which]
    call["past_visual_value"][:] = 1
    fixation = library.run("focal", **call, scale=0.3, fixation_size=40).fixation[0, 0]
    mass = mass_of_last_row(call, 0.3, True)[0, 0, :2990]
    np.testing.assert_array_equal(fixation, np.sort(np.argsort(-mass.round(12), kind="stable")[:40]))


def test_a_gathered_op_reads_everything_when_told(library):
    call = make_call("gathered", dtype="float16", dim=64)
    sparse = compare(library, "gathered", call, num_splits=3)
    call["attend_all"][0] = 5
    call["fixation"][0, 0, 0] = 10**12  # not looked at
    told = compare(library, "gathered", call, num_splits=3)
    assert np.abs(sparse.output.astype(np.float32) - told.output.astype(np.float32)).max() > 0.01


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("visual_length", 90),
        ("visual_length", -1),
        ("visual_length", 2**63 - 1),
        ("visual_length", -(2**63)),
        ("text_length", 70),
        ("text_length", 69),
        ("text_length", -1),
        ("visual_valid", 91),
        ("visual_valid", -1),
        ("visual_valid", 2**62),
        ("text_valid", 71),
        ("text_valid", -(2**63)),
    ],
)
def test_what_does_not_fit_is_left_out_and_told(library, rows, name, value):
    call = make_call("focal", rows=rows)
    for bank in BANKS:  # whatever is read after the cut is a number
        call[f"past_{bank}"] = np.nan_to_num(call[f"past_{bank}"])
    call[name][0] = value
    call["status"][0] = 64
    got = library.run("focal", **{n: a.copy() for n, a in call.items()}, scale=0.3, fixation_size=12)
    want = expect_beyond_int64(call, name)
    assert got.status == want.status
    np.testing.assert_allclose(got.output, want.output, atol=1e-5)
    for bank in BANKS:
        np.testing.assert_array_equal(getattr(got, f"present_{bank}"), getattr(want, f"present_{bank}"))


def expect_beyond_int64(call, name):
    """The oracle's answer; what is far out of range is brought nearer, since the oracle's sums are int64 too."""
    near = dict(call)
    near[name] = np.clip(call[name], -(10**6), 10**6)
    return expect("focal", near, 0.3, 12)


@pytest.mark.parametrize("entry", [-2, 2**40, -(2**63), "valid"])
@pytest.mark.parametrize("group", [2, 20])
def test_a_fixation_out_of_range_is_left_out_and_told(library, entry, group):
    call = make_call("gathered", group=group, k=40)
    call["fixation"][1, 0, 35] = call["visual_valid"][1, 0] if entry == "valid" else entry
    got = compare(library, "gathered", call, num_splits=2)
    assert got.status == reference.STATUS_FIXATION_OUT_OF_RANGE


@pytest.mark.parametrize("rows", [1, 3])
def test_past_is_kept_where_present_is_another_buffer(library, rows):
    call = make_call(rows=rows)
    want = expect("dense", call, 0.3)
    given = {name: array.copy() for name, array in call.items()}
    present = {f"present_{bank}": np.zeros_like(call[f"past_{bank}"]) for bank in BANKS[:3]}
    got = library.run("dense", **given, **present, scale=0.3)
    for bank in BANKS:
        np.testing.assert_array_equal(getattr(got, f"present_{bank}"), getattr(want, f"present_{bank}"))
        kept = want.present_text_value if bank == "text_value" else call[f"past_{bank}"]
        np.testing.assert_array_equal(given[f"past_{bank}"], kept)
    np.testing.assert_allclose(got.output, want.output, atol=1e-5)


def test_status_may_be_written_in_place(library):
    call = make_call()
    call["text_length"][0] = -7
    call["status"][0] = 32
    library.run("dense", **call, status_out=call["status"], scale=0.3)
    assert call["status"] == 32 | reference.STATUS_TEXT_BANK_FULL
