"""The attention of the three ops as Triton kernels: split-KV flash attention over two banks, and what it leaves.

A program takes BLOCK_M query rows of one (page, KV head) and every num_splits-th block of key rows, first of the
visual bank, then of the text bank, so that K and V are read once for all query heads of the KV head. Query rows are
numbered head by head: row r is query r % n of the group's head r // n. Partial results go to a workspace and a second
kernel joins them by their log-sum-exp.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def append_rows(
    new, bank, length, new_rows, capacity, head_dim: tl.constexpr, kv_heads: tl.constexpr, BLOCK_D: tl.constexpr
):
    """new [B,KV,n,D] into bank [B,KV,capacity,D] at length [B]; rows beyond the bank are left out."""
    group, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dims = tl.arange(0, BLOCK_D)
    place = tl.load(length + group // kv_heads) + row + tl.zeros([BLOCK_D], tl.int64)
    mask = (dims < head_dim) & (place >= 0) & (place < capacity)
    values = tl.load(new + (group * new_rows + row) * head_dim + dims, mask=dims < head_dim)
    tl.store(bank + (group * capacity + place) * head_dim + dims, values, mask=mask)


@triton.jit
def _accumulate(q, k, v, seen, best, total, acc, scale, UPCAST: tl.constexpr):
    """One block of keys into the running softmax: scores [M,N] (finite where unseen), best, total [M], acc [M,D]."""
    if UPCAST:
        scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee") * scale
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(best, tl.max(scores, 1))
    # A row that has seen nothing yet keeps -inf; 0 in its place keeps exp() from -inf minus -inf.
    base = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp(scores - base[:, None])
    shrink = tl.exp(best - base)
    total = total * shrink + tl.sum(weights, 1)
    if UPCAST:
        added = tl.dot(weights, v.to(tl.float32), input_precision="ieee")
    else:
        added = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return scores, higher, total, acc * shrink[:, None] + added


@triton.jit
def attend(
    query,  # [B,H,n,D]
    visual_key,  # [B,KV,VCAP,D]
    visual_value,
    text_key,  # [B,KV,TCAP,D]
    text_value,
    visual_valid,  # [B,n] int64
    text_valid,  # [B,n] int64
    fixation,  # [B,KV,k] int64 where GATHERED
    partial,  # [splits,B,H,n,D] float32
    partial_lse,  # [splits,B,H,n] float32, -inf where a split saw nothing
    raw_scores,  # [B,H,visual_rows] float32 of the last query row, where SCORES; -inf where unseen
    scale,
    n,
    visual_rows,  # rows of the bank in use, or k where GATHERED
    text_rows,
    visual_capacity,
    text_capacity,
    num_splits,
    group: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    GATHERED: tl.constexpr,
    SCORES: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One split of the attention of BLOCK_M query rows; grid (row tiles, B*KV, splits)."""
    tile, page_head, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    page = page_head // kv_heads
    batch = tl.num_programs(1) // kv_heads
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    columns = tl.arange(0, BLOCK_N)
    real = rows < group * n
    places = page_head * group * n + rows  # of [B,H,n]
    inside = dims[None, :] < head_dim
    q = tl.load(query + places[:, None] * head_dim + dims[None, :], mask=real[:, None] & inside, other=0.0)
    step = rows % n
    seen_visual = tl.load(visual_valid + page * n + step, mask=real, other=0)
    seen_text = tl.load(text_valid + page * n + step, mask=real, other=0)
    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    is_last = real & (step == n - 1)
    # Rows that no query of the tile may see are not read: they may hold anything.
    end_visual = tl.max(seen_visual, 0)
    end_text = tl.max(seen_text, 0)
    for start in range(split * BLOCK_N, visual_rows, num_splits * BLOCK_N):
        at = start + columns
        used = at < visual_rows
        if GATHERED:  # noqa: SIM108 (a branch of the compiler, which must not see the other side's pointer)
            chosen = tl.load(fixation + page_head * visual_rows + at, mask=used, other=-1)
        else:
            chosen = at.to(tl.int64)
        used = used & (chosen >= 0) & (chosen < visual_capacity) & (chosen < end_visual)
        offsets = (page_head * visual_capacity + chosen)[:, None] * head_dim + dims[None, :]
        k = tl.load(visual_key + offsets, mask=used[:, None] & inside, other=0.0)
        v = tl.load(visual_value + offsets, mask=used[:, None] & inside, other=0.0)
        seen = used[None, :] & (chosen[None, :] < seen_visual[:, None])
        scores, best, total, acc = _accumulate(q, k, v, seen, best, total, acc, scale, UPCAST)
        if SCORES:
            heads = page_head * group + rows // n
            keep = is_last[:, None] & (at < visual_rows)[None, :]
            tl.store(raw_scores + heads[:, None] * visual_rows + at[None, :], scores, mask=keep)
    for start in range(split * BLOCK_N, text_rows, num_splits * BLOCK_N):
        at = start + columns
        used = (at < text_rows) & (at < text_capacity) & (at < end_text)
        offsets = (page_head * text_capacity + at)[:, None] * head_dim + dims[None, :]
        k = tl.load(text_key + offsets, mask=used[:, None] & inside, other=0.0)
        v = tl.load(text_value + offsets, mask=used[:, None] & inside, other=0.0)
        seen = used[None, :] & (at[None, :] < seen_text[:, None])
        scores, best, total, acc = _accumulate(q, k, v, seen, best, total, acc, scale, UPCAST)
    nothing = total == 0.0
    safe = tl.where(nothing, 1.0, total)
    lse = tl.where(nothing, float("-inf"), best + tl.log(safe))
    out = split.to(tl.int64) * batch * kv_heads * group * n + places
    tl.store(partial_lse + out, lse, mask=real)
    tl.store(partial + out[:, None] * head_dim + dims[None, :], acc / safe[:, None], mask=real[:, None] & inside)


@triton.jit
def merge_splits(
    partial,
    partial_lse,
    output,
    merged_lse,
    count,
    num_splits,
    head_dim: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """The splits of one query row joined: output [B,H,n,D] in its dtype, merged_lse [B,H,n]; grid (B*H*n,)."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, BLOCK_S)
    dims = tl.arange(0, BLOCK_D)
    there = splits < num_splits
    lse = tl.load(partial_lse + splits * count + row, mask=there, other=float("-inf"))
    best = tl.max(lse, 0)
    base = tl.where(best == float("-inf"), 0.0, best)
    weights = tl.exp(lse - base)
    total = tl.sum(weights, 0)
    nothing = total == 0.0
    safe = tl.where(nothing, 1.0, total)
    offsets = (splits * count + row)[:, None] * head_dim + dims[None, :]
    inside = there[:, None] & (dims < head_dim)[None, :]
    parts = tl.load(partial + offsets, mask=inside, other=0.0)
    joined = tl.sum(parts * (weights / safe)[:, None], 0)
    tl.store(output + row * head_dim + dims, joined.to(output.dtype.element_ty), mask=dims < head_dim)
    tl.store(merged_lse + row, tl.where(nothing, float("-inf"), base + tl.log(safe)))


@triton.jit
def visual_mass(raw_scores, merged_lse, mass, n, visual_rows, group: tl.constexpr, BLOCK_N: tl.constexpr):
    """mass [B,KV,visual_rows]: the last query row's softmax mass, summed over the group; grid (B*KV, row blocks)."""
    page_head = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = at < visual_rows
    total = tl.zeros([BLOCK_N], tl.float32)
    for g in range(group):
        head = page_head * group + g
        lse = tl.load(merged_lse + head * n + n - 1)
        score = tl.load(raw_scores + head * visual_rows + at, mask=inside, other=float("-inf"))
        total += tl.where(score == float("-inf"), 0.0, tl.exp(score - lse))
    tl.store(mass + page_head * visual_rows + at, total, mask=inside)
