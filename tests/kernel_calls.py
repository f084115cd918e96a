"""Calls of the CUDA kernels, run on the CPU in guarded memory, and the oracle's answers to them."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

from fastocr_trt import reference
from fastocr_trt.errors import MissingDependencyError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # tools/ is not installed

from tools.kernel_library import BANKS, KernelLibrary, build, missing_tool, shape_of

ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 arrays need ml_dtypes")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
QUICK = settings(max_examples=25, deadline=None, derandomize=True, database=None)
GUARD = -0x5555555555555556


def load_kernels():
    """The kernels' library, built where that was not done yet; skips the test that asks where a tool is missing."""
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
