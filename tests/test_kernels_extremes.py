"""The CUDA kernels, run on the CPU, on numbers at the edge: not finite, huge, out of range, left over in memory."""

import numpy as np
import pytest
from kernel_calls import BANKS, DTYPES, compare, expect, load_kernels, make_call, numbers, shape_of

LARGEST, LEAST = 2**63 - 1, -(2**63)


@pytest.fixture(scope="module")
def library():
    return load_kernels()


@pytest.mark.parametrize("num_splits", [0, 1, 3, 128])
@pytest.mark.parametrize("op", ["dense", "focal", "gathered"])
def test_what_lies_in_the_workspace_does_not_matter(library, op, num_splits):
    for rows in (1, 5):
        call = make_call(op, dtype="float16", rows=rows)
        options = {"scale": 0.3, "fixation_size": 12 if op == "focal" else 0, "num_splits": num_splits}
        size = library.workspace_size(shape_of(op, call, **options)) // 8 + 1
        results = [
            library.run(op, **{name: array.copy() for name, array in call.items()}, **options, workspace=workspace)
            for workspace in (np.full(size, np.nan), np.zeros(size))
        ]
        for first, second in zip(*results, strict=True):
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_key_that_is_not_finite_spoils_its_page_alone(library, value, dtype):
    """The selection still takes as many rows as it should, each once and each of the page."""
    call = make_call("focal", dtype=dtype, counts=numbers(5, 7))
    clean = library.run("focal", **{n: a.copy() for n, a in call.items()}, scale=0.3, fixation_size=12)
    call["past_visual_key"][0, 0, 0] = value
    for num_splits in (0, 1, 4):
        given = {name: array.copy() for name, array in call.items()}
        got = library.run("focal", **given, scale=0.3, fixation_size=12, num_splits=num_splits)
        np.testing.assert_allclose(got.output[1].astype(float), clean.output[1].astype(float), atol=2e-3)
        np.testing.assert_array_equal(got.fixation[1], clean.fixation[1])
        assert not np.isfinite(got.output[0].astype(float)).all()
        chosen = got.fixation[0, 0, :5]
        assert (np.diff(chosen) > 0).all() and chosen[0] >= 0 and chosen[-1] < call["visual_valid"][0, -1]
        assert (got.fixation[0, 0, 5:] == -1).all() and got.status == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_score_far_above_the_others(library, dtype):
    """Its row takes all the mass; the others have none, and ties of nothing go to the lower rows."""
    call = make_call("focal", dtype=dtype, counts=numbers(4, 4))
    kind = DTYPES[dtype]
    call["visual_length"][:], call["visual_valid"][:] = 60, 60
    call["text_length"][:], call["text_valid"][:] = 0, 1
    for bank in BANKS:
        call[f"past_{bank}"] = np.nan_to_num(call[f"past_{bank}"].astype(np.float32)).astype(kind)
    call["query"][:] = 200
    call["past_visual_key"][:] = -200
    call["past_visual_key"][:, :, 41] = 200
    got = library.run("focal", **{n: a.copy() for n, a in call.items()}, scale=1.0, fixation_size=12)
    wanted = np.repeat(call["past_visual_value"][:, :, 41], 2, 1)[:, :, None]  # two query heads a KV head
    np.testing.assert_array_equal(got.output, wanted)
    assert got.fixation[:, :, :4].tolist() == [[[0, 1, 2, 41]] * 2] * 2


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("value", [-1, -2, LEAST, LARGEST, 2**31, -(2**31), 2**32])
@pytest.mark.parametrize("name", ["visual_length", "text_length", "visual_valid", "text_valid"])
def test_counts_far_out_of_range(library, name, value, rows):
    call = make_call("dense", rows=rows)
    for bank in BANKS:
        call[f"past_{bank}"] = np.nan_to_num(call[f"past_{bank}"])
    call[name][1] = value
    assert compare(library, "dense", call).status != 0


@pytest.mark.parametrize("value", [2**31, 2**32 + 1, LARGEST])
def test_numbers_that_32_bits_would_cut(library, value):
    compare(library, "focal", make_call("focal", counts=numbers(value, 3)), fixation_size=12)
    call = make_call("gathered")
    call["attend_all"][:] = value  # not 0, though its lower 32 bits may be
    compare(library, "gathered", call)
    call = make_call("gathered")
    call["fixation"][0, 0, 0] = value
    assert compare(library, "gathered", call).status != 0


def test_some_banks_in_place_and_others_copied(library):
    call = make_call("dense")
    want = expect("dense", call, 0.3)
    given = {name: array.copy() for name, array in call.items()}
    other = {f"present_{bank}": np.full_like(call[f"past_{bank}"], 7) for bank in ("visual_value", "text_key")}
    got = library.run("dense", **given, **other, scale=0.3)
    np.testing.assert_allclose(got.output, want.output, atol=1e-5)
    for bank in BANKS:
        np.testing.assert_array_equal(getattr(got, f"present_{bank}"), getattr(want, f"present_{bank}").astype("f4"))
    for bank in ("visual_value", "text_key"):
        np.testing.assert_array_equal(given[f"past_{bank}"], call[f"past_{bank}"])
