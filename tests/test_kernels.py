"""The CUDA kernels, run on the CPU, against the oracle's engine form."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt import reference
from fastocr_trt.errors import MissingDependencyError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/ is not installed

from tools.kernel_library import BANKS, KernelLibrary, Shape, build, missing_tool, shape_of

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None)
GUARD = -0x5555555555555556


@pytest.fixture(scope="module")
def library():
    missing = missing_tool()
    if missing:
        pytest.skip(f"building the kernels needs {missing}, which is not installed")
    try:
        return KernelLibrary(build())
    except MissingDependencyError as error:  # CUDA's headers
        pytest.skip(str(error))


def numbers(*values):
    return np.array(values, np.int64)


def make_call(
    op="dense", *, dtype="float32", batch=2, kv=2, group=2, rows=1, dim=16, vcap=90, tcap=70, k=12, counts=None, seed=0
):
    """Arguments of `KernelLibrary.run`: pages of different lengths, NaN wherever nothing may be read."""
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype]
    call = {
        name: rng.standard_normal((batch, heads, rows, dim)).astype(kind)
        for name, heads in (("query", kv * group), ("key", kv), ("value", kv))
    }
    visual_length = rng.integers(0, vcap - rows + 1, batch)
    text_length = rng.integers(0, tcap - rows + 1, batch)
    for bank in BANKS:
        capacity, length = (vcap, visual_length) if bank.startswith("visual") else (tcap, text_length)
        values = rng.standard_normal((batch, kv, capacity, dim))
        for b in range(batch):
            values[b, :, length[b] :] = np.nan
        call[f"past_{bank}"] = values.astype(kind)
    call |= {
        "visual_length": visual_length,
        "text_length": text_length,
        "visual_valid": np.repeat(visual_length[:, None], rows, 1),
        "text_valid": text_length[:, None] + np.arange(1, rows + 1),
        "status": numbers(0),
    }
    if op == "focal":
        call["num_fixations"] = rng.integers(0, k + 3, batch) if counts is None else counts
    if op == "gathered":
        call["attend_all"] = numbers(0)
        call["fixation"] = np.full((batch, kv, k), -1)
        for b in range(batch):
            for g in range(kv):
                count = min(int(visual_length[b]), int(rng.integers(0, k + 1)))
                places = rng.permutation(k)[:count]
                call["fixation"][b, g, places] = rng.permutation(visual_length[b])[:count]
    return call


def expect(op, call, scale, fixation_size=0, per_kv_head=True):
    """The oracle's answer in float64."""
    wide = {name: a.astype(np.float64) if a.dtype.kind not in "iu" else a for name, a in call.items()}
    with np.errstate(invalid="ignore"):
        return reference.engine_form(op, **wide, scale=scale, fixation_size=fixation_size, per_kv_head=per_kv_head)


def mass_of_last_row(call, scale, per_kv_head):
    """[B,KV,VCAP]: softmax mass of the last query row, summed over query heads; -1 where there is no row."""
    result = expect("dense", {n: a for n, a in call.items() if n != "num_fixations"}, scale)
    batch, heads, _, _ = call["query"].shape
    kv, vcap = call["past_visual_key"].shape[1:3]
    mass = np.full((batch, kv, vcap), -1.0)
    for b in range(batch):
        nv, nt = np.clip(call["visual_valid"][b, -1], 0, vcap), call["text_valid"][b, -1]
        for g in range(kv):
            keys = np.concatenate([result.present_visual_key[b, g, :nv], result.present_text_key[b, g, :nt]])
            group = slice(g * heads // kv, (g + 1) * heads // kv)
            weights = np.exp(call["query"][b, group, -1].astype(np.float64) @ keys.T * scale)
            mass[b, g, :nv] = (weights / weights.sum(1, keepdims=True)).sum(0)[:nv]
        if not per_kv_head:
            mass[b] = mass[b].sum(0)
    return mass


def compare(library, op, call, *, scale=0.3, fixation_size=0, per_kv_head=True, num_splits=0):
    """Run `call` in guarded memory and hold every output against the oracle."""
    given = {name: array.copy() for name, array in call.items()}
    options = {"scale": scale, "per_kv_head": per_kv_head, "fixation_size": fixation_size}
    want = expect(op, call, scale, fixation_size, per_kv_head)
    needed = -(-library.workspace_size(shape_of(op, given, num_splits=num_splits, **options)) // 8)
    workspace = np.full(needed + 32, GUARD)
    got = library.run(op, **given, **options, num_splits=num_splits, workspace=workspace[16 : 16 + needed])
    assert (workspace[:16] == GUARD).all() and (workspace[16 + needed :] == GUARD).all()

    kind = call["query"].dtype
    eps = float(ml_dtypes.finfo(kind).eps)
    # Decode rounds its result once. Prefill rounds the softmax to the stored type as well, as tensor cores take it.
    # The rest is what float32 sums of up to 256 products leave of the scores.
    tolerance = (eps if call["query"].shape[2] == 1 else 2 * eps) * 4 + 1e-5
    np.testing.assert_allclose(got.output.astype(np.float64), want.output, rtol=0, atol=tolerance)
    for bank in BANKS:
        np.testing.assert_array_equal(
            getattr(got, f"present_{bank}").astype(np.float64), getattr(want, f"present_{bank}"), err_msg=bank
        )
    assert got.status == want.status
    if op == "focal":
        check_fixation(got.fixation, call, scale, fixation_size, per_kv_head)
    return got


def check_fixation(fixation, call, scale, size, per_kv_head):
    """Ascending, complete, and no row left out has more mass than one taken, but for what float32 can tell apart."""
    mass = mass_of_last_row(call, scale, per_kv_head)
    for b in range(len(fixation)):
        valid = int((mass[b, 0] >= 0).sum())
        count = max(0, min(int(call["num_fixations"][b]), valid, size))
        for g in range(fixation.shape[1]):
            chosen, rest = fixation[b, g, :count], fixation[b, g, count:]
            assert (rest == -1).all() and (np.diff(chosen) > 0).all()
            assert count == 0 or (chosen[0] >= 0 and chosen[-1] < valid)
            left = np.delete(mass[b, g, :valid], chosen)
            if count and left.size:
                assert mass[b, g, chosen].min() >= left.max() * (1 - 1e-5)
    if not per_kv_head:
        np.testing.assert_array_equal(fixation, np.repeat(fixation[:, :1], fixation.shape[1], 1))


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


SHAPE = {
    "op": 1,
    "dtype": 1,
    "batch": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "rows": 1,
    "head_dim": 64,
    "visual_capacity": 256,
    "text_capacity": 64,
    "fixation_size": 16,
    "per_kv_head": 1,
    "num_splits": 0,
    "scale": 0.125,
}
GROWING = ("batch", "rows", "visual_capacity", "text_capacity", "fixation_size", "num_splits")


@QUICK
@given(
    shape=st.fixed_dictionaries(
        {
            "op": st.integers(0, 2),
            "batch": st.integers(1, 300),
            "rows": st.integers(1, 600),
            "visual_capacity": st.integers(64, 40000),
            "text_capacity": st.integers(1, 9000),
            "fixation_size": st.integers(0, 32),
            "num_splits": st.integers(0, 100),
        }
    ),
    grown=st.sampled_from(GROWING),
    by=st.integers(1, 25),
)
def test_workspace_never_falls_as_a_call_grows(library, shape, grown, by):
    shape = SHAPE | shape
    if shape["op"] == 0:
        shape["fixation_size"] = 0
        grown = "batch" if grown == "fixation_size" else grown
    if grown == "num_splits":
        shape["num_splits"] = max(1, shape["num_splits"])  # 0 is the library's own choice
    larger = shape | {grown: shape[grown] + by}
    assert library.check(Shape(**shape)) is None and library.check(Shape(**larger)) is None
    assert 0 < library.workspace_size(Shape(**shape)) <= library.workspace_size(Shape(**larger))


def test_a_workspace_that_is_too_small_is_refused(library):
    call = make_call()
    needed = library.workspace_size(shape_of("dense", call, scale=0.3))
    with pytest.raises(RuntimeError, match=r"CUDA error 1$"):
        library.run("dense", **call, scale=0.3, workspace=np.zeros(needed - 1, np.uint8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 68}, "head_dim is 68; it must be a multiple of 8"),
        ({"head_dim": 264}, "head_dim is 264; it must be from 8 to 256"),
        ({"op": 3}, "op is 3; it must be from 0 to 2"),
        ({"dtype": -1}, "dtype is -1; it must be from 0 to 2"),
        ({"batch": 0}, "batch is 0; it must be from 1 to 65535"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 8; it must be a multiple of num_key_value_heads.* is 3"),
        ({"fixation_size": 257}, "fixation_size is 257; it must be from 0 to 256"),
        ({"op": 0}, "fixation_size is 16; it must be from 0 to 0"),
        ({"num_splits": 129}, "num_splits is 129; it must be from 0 to 128"),
        ({"visual_capacity": 2**30}, r"visual_capacity \+ text_capacity is 1073741888"),
        ({"rows": 2**30}, "rows 1073741824 is more than 1073741824; feed fewer rows at once"),
        ({"scale": float("nan")}, "scale is -?nan; it must be finite"),
    ],
)
def test_a_shape_that_the_kernels_cannot_run_is_named(library, changes, message):
    shape = Shape(**(SHAPE | changes))
    assert re.search(message, library.check(shape))
    assert library.workspace_size(shape) == 0
