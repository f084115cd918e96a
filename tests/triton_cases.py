"""The Triton kernels in Triton's interpreter against the oracle. test_triton.py runs this file with the interpreter on,
which must be so before Triton is imported."""

import numpy as np
import pytest
import torch

from fastocr_trt import reference
from fastocr_trt.export import ops  # noqa: F401 (torch.ops.fastocr, which the registered forms are compared with)
from fastocr_trt.export import triton_attention as attention
from fastocr_trt.export.triton_attention import Banks, Seen

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def case(batch, kv, group, n, dim, visual, text, dtype=torch.float32, seed=0, slack=3):
    """Ragged lengths up to `visual` and `text`; the new rows are text, seen one by one."""
    rng = np.random.default_rng(seed)
    visual_length = np.minimum(
        visual, rng.integers(0, visual + 1, batch) * (np.arange(batch) > 0) + visual * (np.arange(batch) == 0)
    )
    text_length = rng.integers(0, text + 1, batch)
    tensors = [torch.from_numpy(rng.standard_normal((batch, h, n, dim))).to(dtype) for h in (kv * group, kv, kv)]
    caps = (visual + n + slack, visual + n + slack, text + n + slack, text + n + slack)
    banks = [torch.from_numpy(rng.standard_normal((batch, kv, cap, dim))).to(dtype) for cap in caps]
    visual_valid = np.repeat(visual_length[:, None], n, 1)
    text_valid = text_length[:, None] + np.arange(1, n + 1)
    state = [np.ascontiguousarray(a, np.int64) for a in (visual_length, text_length, visual_valid, text_valid)]
    return tensors, banks, state


def oracle(tensors, banks, state):
    arrays = [t.double().numpy() for t in (*tensors, *banks)]
    return (*arrays, *state)


def on_device(banks, state):
    return Banks(*(b.clone() for b in banks)), Seen(*map(torch.from_numpy, state))


def rows_in_use(state):
    return max(1, int(state[2].max())), max(1, int(state[3].max()))


SHAPES = [
    # batch, kv, group, n, dim, visual, text
    (1, 2, 4, 1, 64, 70, 30),
    (3, 1, 7, 1, 80, 130, 5),
    (2, 2, 1, 5, 128, 9, 66),
    (2, 1, 3, 11, 96, 40, 0),
    (1, 1, 16, 1, 256, 17, 3),
    (2, 2, 2, 1, 16, 0, 4),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_dense_equals_the_oracle_and_appends(shape, dtype):
    tensors, banks, state = case(*shape, dtype)
    want = reference.dense_attention(*oracle(tensors, banks, state), scale=0.2)
    device_banks, seen = on_device(banks, state)
    got = attention.dense(*tensors, device_banks, seen, *rows_in_use(state), 0.2)
    assert got.dtype == dtype
    np.testing.assert_allclose(got.double(), want.output, atol=TOLERANCE[dtype])
    for bank, present in zip(device_banks, want[1:], strict=True):
        np.testing.assert_array_equal(bank.double(), present)


@pytest.mark.parametrize("per_kv_head", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_focal_selects_what_the_oracle_selects(shape, per_kv_head):
    tensors, banks, state = case(*shape, seed=1)
    counts, size = np.resize([5, 0, 3], shape[0]), 6
    arrays = oracle(tensors, banks, state)
    want = reference.focal_attention(*arrays, counts, size, scale=0.2, per_kv_head=per_kv_head)
    device_banks, seen = on_device(banks, state)
    sizes = (*rows_in_use(state), torch.from_numpy(counts), size)
    output, fixation = attention.focal(*tensors, device_banks, seen, *sizes, 0.2, per_kv_head)
    np.testing.assert_allclose(output, want.output, atol=2e-5)
    np.testing.assert_array_equal(fixation, np.sort(want.fixation, -1))


def test_ties_go_to_the_lower_row():
    mass = torch.tensor([[[0.1, 0.3, 0.3, 0.3, 0.2]]])
    chosen = attention.select(mass, torch.tensor([5]), torch.tensor([2]), 3, True)
    assert chosen.tolist() == [[[-1, 1, 2]]]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_gathered_reads_the_fixation_and_all_text(shape, dtype):
    tensors, banks, state = case(*shape, dtype, seed=2)
    rng = np.random.default_rng(3)
    batch, kv, visual = shape[0], shape[1], shape[5]
    fixation = np.full((batch, kv, 9), -1)
    for b in range(batch):
        for g in range(kv):
            count = min(7, visual)
            fixation[b, g, :count] = rng.permutation(visual)[:count]  # some lie beyond a shorter page: left out
    arrays = oracle(tensors, banks, state)
    want = reference.gathered_attention(*arrays[:7], state[1], *state[2:], fixation, scale=0.2)
    device_banks, seen = on_device(banks, state)
    got = attention.gathered(*tensors, device_banks, seen, rows_in_use(state)[1], torch.from_numpy(fixation), 0.2)
    np.testing.assert_allclose(got.double(), want.output, atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(device_banks.visual_key, banks[0])
    np.testing.assert_array_equal(device_banks.text_value.double(), want.present_text_value)


def test_rows_nobody_may_see_are_not_read():
    tensors, banks, state = case(2, 1, 2, 1, 32, 40, 10)
    clean, seen = on_device(banks, state)
    want = attention.dense(*tensors, clean, seen, 43, 13, 0.2)
    for bank, length in zip(banks, (state[0], state[0], state[1], state[1]), strict=True):
        for b, start in enumerate(length):
            bank[b, :, start + 1 :] = float("nan")
    dirty, _ = on_device(banks, state)
    np.testing.assert_array_equal(attention.dense(*tensors, dirty, seen, 43, 13, 0.2), want)


def test_a_row_beyond_the_bank_is_not_written():
    tensors, banks, state = case(1, 1, 1, 1, 16, 4, 2)
    state[0][0] = banks[0].shape[2]
    device_banks, seen = on_device(banks, state)
    attention.append(*tensors[1:], device_banks, seen)
    np.testing.assert_array_equal(device_banks.visual_key, banks[0])


def test_registered_ops_leave_their_inputs_alone():
    tensors, banks, state = case(2, 2, 2, 1, 16, 12, 6)
    slots = (torch.arange(max(1, int(state[2].max()))), torch.arange(int(state[3].max())))
    states = tuple(map(torch.from_numpy, state))
    before = [bank.clone() for bank in banks]
    counts = torch.tensor([3, 2])
    got = attention._focal_op(*tensors, *banks, *states, *slots, counts, torch.arange(3), 0.2, 1)
    want = torch.ops.fastocr.focal_attention(*tensors, *banks, *states, *slots, counts, torch.arange(3), 0.2, 1)
    for mine, theirs in zip(got[:5], want[:5], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    np.testing.assert_array_equal(got[5], want[5].sort(-1).values)
    fixation = want[5]
    rows = (states[1], *states[2:], slots[1], fixation, 0.2)
    got = attention._gathered_op(*tensors, *banks, *rows)
    for mine, theirs in zip(got, torch.ops.fastocr.gathered_attention(*tensors, *banks, *rows), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    got = attention._dense_op(*tensors, *banks, *states, *slots, 0.2)
    for mine, theirs in zip(
        got, torch.ops.fastocr.dense_attention(*tensors, *banks, *states, *slots, 0.2), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)
    for bank, old in zip(banks, before, strict=True):
        np.testing.assert_array_equal(bank, old)


def test_tensors_may_be_strided():
    """As a model's are, whose heads are a transposed view."""
    tensors, banks, state = case(2, 2, 2, 5, 16, 9, 6)
    arrays, rows = oracle(tensors, banks, state), rows_in_use(state)
    tensors = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    strided = Seen(*(torch.stack([torch.from_numpy(a), torch.from_numpy(a) + 1], -1)[..., 0] for a in state))
    assert not tensors[0].is_contiguous() and not strided.visual_length.is_contiguous()
    device_banks, _ = on_device(banks, state)
    got = attention.dense(*tensors, device_banks, strided, *rows, 0.2)
    want = reference.dense_attention(*arrays, scale=0.2)
    np.testing.assert_allclose(got, want.output, atol=2e-5)
    for bank, present in zip(device_banks, want[1:], strict=True):
        np.testing.assert_array_equal(bank.double(), present)
    fixation = torch.tensor([[[0, 2, -1]] * 2] * 2)
    want = reference.gathered_attention(*arrays[:7], state[1], *state[2:], fixation.numpy(), scale=0.2)
    strided_fixation = fixation.transpose(0, 2).contiguous().transpose(0, 2)
    device_banks, _ = on_device(banks, state)
    got = attention.gathered(*tensors, device_banks, strided, rows[1], strided_fixation, 0.2)
    np.testing.assert_allclose(got, want.output, atol=2e-5)


def test_what_the_kernels_cannot_see_is_told():
    tensors, banks, state = case(1, 2, 2, 1, 16, 4, 2)
    device_banks, seen = on_device(banks, state)
    strided = device_banks._replace(text_key=banks[2].transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(ValueError, match="the bank text_key is not contiguous"):
        attention.dense(*tensors, strided, seen, 4, 3, 0.2)
    with pytest.raises(ValueError, match=r"torch\.float16 on cpu, torch\.float32 on cpu; they must share"):
        attention.dense(tensors[0].half(), *tensors[1:], device_banks, seen, 4, 3, 0.2)
    with pytest.raises(ValueError, match="3 query heads are not a multiple of 2 KV heads"):
        attention.focal(tensors[0][:, :3], *tensors[1:], device_banks, seen, 4, 3, torch.tensor([1]), 1, 0.2)


def test_a_page_without_visual_rows_has_no_fixation():
    tensors, banks, state = case(2, 2, 2, 1, 16, 0, 4)
    device_banks, seen = on_device(banks, state)
    output, fixation = attention.focal(*tensors, device_banks, seen, 0, 5, torch.tensor([2, 0]), 3, 0.2)
    np.testing.assert_allclose(
        output, reference.dense_attention(*oracle(tensors, banks, state), scale=0.2).output, atol=2e-5
    )
    assert (fixation == -1).all() and fixation.shape == (2, 2, 3)
