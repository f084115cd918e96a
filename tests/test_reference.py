"""The oracle against attention written another way: PyTorch's, with masks, over joined banks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastocr_trt import reference

torch = pytest.importorskip("torch")


@st.composite
def layers(draw):
    """A random attention call: ragged lengths, rows of one kind, room for them in both banks."""
    batch, kv, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    rows, dim = draw(st.integers(1, 4)), draw(st.sampled_from([4, 8]))
    visual_length = np.array([draw(st.integers(0, 12)) for _ in range(batch)])
    text_length = np.array([draw(st.integers(0, 9)) for _ in range(batch)])
    kind = draw(st.sampled_from(["text", "visual"]))
    slack = draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    vcap, tcap = visual_length.max() + rows + slack, text_length.max() + rows + slack
    new = [rng.standard_normal((batch, h, rows, dim)) for h in (kv * group, kv, kv)]
    banks = [rng.standard_normal((batch, kv, cap, dim)) for cap in (vcap, vcap, tcap, tcap)]
    steps = np.arange(1, rows + 1)
    visual_valid = visual_length[:, None] + (steps if kind == "visual" else 0 * steps)
    text_valid = text_length[:, None] + (steps if kind == "text" else 0 * steps)
    return new, banks, visual_length, text_length, visual_valid, text_valid, dim**-0.5


def masked_attention(query, keys, values, mask, scale):
    """[B,H,n,D] by PyTorch; mask [B,KV,n,S] bool, a row that sees nothing gives zero."""
    group = query.shape[1] // keys.shape[1]
    q, k, v, m = (torch.from_numpy(np.ascontiguousarray(a)) for a in (query, keys, values, mask))
    k, v, m = (a.repeat_interleave(group, 1) for a in (k, v, m))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=scale)
    return torch.nan_to_num(out).numpy()


def seen(valid, capacity):
    return np.arange(capacity)[None, None] < valid[:, :, None]


@given(layers())
@settings(max_examples=60, deadline=None)
def test_dense_is_masked_attention_over_the_joined_banks(case):
    new, banks, visual_length, text_length, visual_valid, text_valid, scale = case
    got = reference.dense_attention(*new, *banks, visual_length, text_length, visual_valid, text_valid, scale=scale)
    vk, vv, tk, tv = got[1:]
    mask = np.concatenate([seen(visual_valid, vk.shape[2]), seen(text_valid, tk.shape[2])], -1)
    mask = np.repeat(mask[:, None], vk.shape[1], 1)
    want = masked_attention(new[0], np.concatenate([vk, tk], 2), np.concatenate([vv, tv], 2), mask, scale)
    np.testing.assert_allclose(got.output, want, atol=1e-9)


@given(layers())
@settings(max_examples=30, deadline=None)
def test_new_rows_are_written_at_the_lengths_and_nowhere_else(case):
    new, banks, visual_length, text_length, visual_valid, text_valid, scale = case
    got = reference.dense_attention(*new, *banks, visual_length, text_length, visual_valid, text_valid, scale=scale)
    for present, past, rows, length in (
        (got.present_visual_key, banks[0], new[1], visual_length),
        (got.present_visual_value, banks[1], new[2], visual_length),
        (got.present_text_key, banks[2], new[1], text_length),
        (got.present_text_value, banks[3], new[2], text_length),
    ):
        want = past.copy()
        for b, start in enumerate(length):
            want[b, :, start : start + rows.shape[2]] = rows[b]
        np.testing.assert_array_equal(present, want)


@given(layers(), st.integers(1, 14), st.booleans())
@settings(max_examples=60, deadline=None)
def test_focal_selects_the_rows_of_largest_mass(case, k, per_kv_head):
    new, banks, visual_length, text_length, visual_valid, text_valid, scale = case
    num_fixations = np.minimum(k, visual_valid[:, -1])
    got = reference.focal_attention(
        *new,
        *banks,
        visual_length,
        text_length,
        visual_valid,
        text_valid,
        num_fixations,
        k,
        scale=scale,
        per_kv_head=per_kv_head,
    )
    kv = banks[0].shape[1]
    for b, nv in enumerate(visual_valid[:, -1]):
        q = new[0][b, :, -1].reshape(kv, -1, new[0].shape[-1])
        keys = np.concatenate([got.present_visual_key[b, :, :nv], got.present_text_key[b, :, : text_valid[b, -1]]], 1)
        if keys.shape[1] == 0:
            continue
        weights = torch.softmax(torch.from_numpy(q @ keys.swapaxes(1, 2) * scale), -1).numpy()[..., :nv].sum(1)
        if not per_kv_head:
            weights = np.broadcast_to(weights.sum(0), weights.shape)
        for g in range(kv):
            chosen = got.fixation[b, g]
            used = chosen[chosen >= 0]
            assert len(used) == len(set(used.tolist())) == num_fixations[b]
            assert (chosen[len(used) :] == -1).all()
            if 0 < len(used) < nv:
                left = np.setdiff1d(np.arange(nv), used)
                assert weights[g, used].min() >= weights[g, left].max() - 1e-12


def test_ties_go_to_the_lower_row():
    shape = (1, 1, 6, 4)
    same = np.ones(shape)
    got = reference.focal_attention(
        np.ones((1, 2, 1, 4)),
        np.ones((1, 1, 1, 4)),
        np.ones((1, 1, 1, 4)),
        same,
        same,
        same,
        same,
        np.array([5]),
        np.array([0]),
        np.array([[5]]),
        np.array([[1]]),
        np.array([3]),
        3,
        scale=0.5,
    )
    assert got.fixation.tolist() == [[[0, 1, 2]]]


@given(layers(), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_gathered_is_attention_masked_to_the_fixation(case, seed):
    new, banks, _, text_length, visual_valid, text_valid, scale = case
    rng = np.random.default_rng(seed)
    batch, kv, vcap, _ = banks[0].shape
    k = int(rng.integers(1, vcap + 1))
    fixation = np.stack([[rng.permutation(vcap)[:k] for _ in range(kv)] for _ in range(batch)])
    fixation[rng.random(fixation.shape) < 0.2] = -1
    got = reference.gathered_attention(*new, *banks, text_length, visual_valid, text_valid, fixation, scale=scale)
    chosen = (fixation[..., None] == np.arange(vcap)).any(2)[:, :, None]
    visual = chosen & seen(visual_valid, vcap)[:, None]
    text = np.broadcast_to(seen(text_valid, banks[2].shape[2])[:, None], (*visual.shape[:3], banks[2].shape[2]))
    want = masked_attention(
        new[0],
        np.concatenate([banks[0], got.present_text_key], 2),
        np.concatenate([banks[1], got.present_text_value], 2),
        np.concatenate([visual, text], -1),
        scale,
    )
    np.testing.assert_allclose(got.output, want, atol=1e-9)


@given(layers())
@settings(max_examples=30, deadline=None)
def test_keep_one_is_dense(case):
    new, banks, visual_length, text_length, visual_valid, text_valid, scale = case
    dense = reference.dense_attention(*new, *banks, visual_length, text_length, visual_valid, text_valid, scale=scale)
    fixation = np.broadcast_to(np.arange(banks[0].shape[2]), (*banks[0].shape[:3],))
    gathered = reference.gathered_attention(
        *new,
        dense.present_visual_key,
        dense.present_visual_value,
        *banks[2:],
        text_length,
        visual_valid,
        text_valid,
        fixation,
        scale=scale,
    )
    np.testing.assert_allclose(gathered.output, dense.output, atol=1e-12)


def test_a_write_past_the_end_is_refused():
    bank = np.zeros((1, 1, 4, 2))
    rows = np.zeros((1, 1, 2, 2))
    with pytest.raises(ValueError, match="text bank, which holds 4 rows"):
        reference.dense_attention(
            rows, rows, rows, bank, bank, bank, bank, np.array([0]), np.array([3]), *[np.ones((1, 2), int)] * 2, scale=1
        )


def test_a_negative_count_of_fixations_selects_none():
    rng = np.random.default_rng(0)
    new = [rng.standard_normal((1, h, 1, 4)) for h in (2, 1, 1)]
    banks = [rng.standard_normal((1, 1, 6, 4)) for _ in range(4)]
    state = [np.array(a) for a in ([3], [2], [[3]], [[3]])]
    got = reference.focal_attention(*new, *banks, *state, np.array([-2]), 2, scale=0.5)
    assert got.fixation.tolist() == [[[-1, -1]]]
