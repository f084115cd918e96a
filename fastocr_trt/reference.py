"""The three attention ops in plain numpy: slow, readable, and the oracle for every other implementation.

Letters: B batch, H query heads, KV key/value heads (H a multiple of KV; consecutive query heads share one),
n query rows, D head_dim, VCAP and TCAP rows of the visual and the text bank, k fixation size.

A layer's KV cache is two banks. New rows are written to both at their current lengths; the caller lets only the
bank of the rows' kind grow, so the other write lies beyond the valid rows and is overwritten later.
`visual_valid[b, i]` and `text_valid[b, i]` say how many rows of each bank query row i may see.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Index = NDArray[np.int64]

STATUS_VISUAL_BANK_FULL = 1
STATUS_TEXT_BANK_FULL = 2
STATUS_FIXATION_OUT_OF_RANGE = 4
STATUS_VALID_OUT_OF_RANGE = 8


class Dense(NamedTuple):
    """output [B,H,n,D]; the banks after the write, shaped as they came."""

    output: Array
    present_visual_key: Array
    present_visual_value: Array
    present_text_key: Array
    present_text_value: Array


class Focal(NamedTuple):
    """As Dense, and fixation [B,KV,k] int64: rows of the visual bank by falling mass, -1 where unused."""

    output: Array
    present_visual_key: Array
    present_visual_value: Array
    present_text_key: Array
    present_text_value: Array
    fixation: Index


class Gathered(NamedTuple):
    """output [B,H,n,D]; the text banks after the write. The visual banks are only read."""

    output: Array
    present_text_key: Array
    present_text_value: Array


def dense_attention(
    query: Array,
    key: Array,
    value: Array,
    past_visual_key: Array,
    past_visual_value: Array,
    past_text_key: Array,
    past_text_value: Array,
    visual_length: Index,
    text_length: Index,
    visual_valid: Index,
    text_valid: Index,
    *,
    scale: float,
) -> Dense:
    """Every visual and every text row that is valid for the query row.

    query [B,H,n,D]; key, value [B,KV,n,D]; past_visual_* [B,KV,VCAP,D]; past_text_* [B,KV,TCAP,D];
    *_length [B]; *_valid [B,n]. Raises ValueError where a write would pass a bank's end.
    """
    banks = _append(
        key, value, past_visual_key, past_visual_value, past_text_key, past_text_value, visual_length, text_length
    )
    output, _ = _attend_all(query, *banks, visual_valid, text_valid, scale)
    return Dense(output, *banks)


def focal_attention(
    query: Array,
    key: Array,
    value: Array,
    past_visual_key: Array,
    past_visual_value: Array,
    past_text_key: Array,
    past_text_value: Array,
    visual_length: Index,
    text_length: Index,
    visual_valid: Index,
    text_valid: Index,
    num_fixations: Index,
    fixation_size: int,
    *,
    scale: float,
    per_kv_head: bool = True,
) -> Focal:
    """Dense attention that also selects, per KV head, the visual rows with the largest softmax mass.

    The mass is that of the LAST query row, softmax over all keys, summed over the query heads of the KV head
    (over all query heads where per_kv_head is False). num_fixations [B] is each page's own k; fixation_size is
    the output's k, at least the largest of them. Ties go to the lower row.
    """
    banks = _append(
        key, value, past_visual_key, past_visual_value, past_text_key, past_text_value, visual_length, text_length
    )
    output, visual_mass = _attend_all(query, *banks, visual_valid, text_valid, scale)
    if not per_kv_head:
        visual_mass = np.broadcast_to(visual_mass.sum(1, keepdims=True), visual_mass.shape)
    batch, kv_heads = visual_mass.shape[:2]
    fixation = np.full((batch, kv_heads, fixation_size), -1, np.int64)
    for b in range(batch):
        valid = int(visual_valid[b, -1])
        count = max(0, min(int(num_fixations[b]), valid, fixation_size))
        for g in range(kv_heads):
            order = np.argsort(-visual_mass[b, g, :valid], kind="stable")  # stable: ties to the lower row
            fixation[b, g, :count] = order[:count]
    return Focal(output, *banks, fixation)


def gathered_attention(
    query: Array,
    key: Array,
    value: Array,
    visual_key: Array,
    visual_value: Array,
    past_text_key: Array,
    past_text_value: Array,
    text_length: Index,
    visual_valid: Index,
    text_valid: Index,
    fixation: Index,
    *,
    scale: float,
) -> Gathered:
    """Only the fixation's visual rows, and every valid text row.

    fixation [B,KV,k]: an entry counts where 0 <= entry < visual_valid; -1 marks an unused place.
    """
    text_key = _write(past_text_key, key, text_length, "text")
    text_value = _write(past_text_value, value, text_length, "text")
    batch, heads, rows, _ = query.shape
    group = heads // key.shape[1]
    output = np.zeros_like(query)
    for b in range(batch):
        for h in range(heads):
            chosen = fixation[b, h // group]
            for i in range(rows):
                seen = chosen[(chosen >= 0) & (chosen < visual_valid[b, i])]
                text = slice(0, int(text_valid[b, i]))
                keys = np.concatenate([visual_key[b, h // group][seen], text_key[b, h // group, text]])
                values = np.concatenate([visual_value[b, h // group][seen], text_value[b, h // group, text]])
                output[b, h, i] = _softmax(keys @ query[b, h, i] * scale) @ values
    return Gathered(output, text_key, text_value)


class Appended(NamedTuple):
    """A result of the engine form: as Focal, with status [1] int64 beside it; fixation is None but for focal."""

    output: Array
    present_visual_key: Array
    present_visual_value: Array
    present_text_key: Array
    present_text_value: Array
    fixation: Index | None
    status: Index


def engine_form(
    op: Literal["dense", "focal", "gathered"],
    query: Array,
    key: Array,
    value: Array,
    past_visual_key: Array,
    past_visual_value: Array,
    past_text_key: Array,
    past_text_value: Array,
    visual_length: Index,
    text_length: Index,
    visual_valid: Index,
    text_valid: Index,
    status: Index,
    *,
    scale: float,
    num_fixations: Index | None = None,
    fixation_size: int = 0,
    per_kv_head: bool = True,
    fixation: Index | None = None,
    attend_all: Index | None = None,
) -> Appended:
    """The ops as one engine uses them for prefill and decode (attribute `dense_prefill = 1`).

    Every op appends to both banks, and every op is dense where n > 1 or attend_all [1] is not 0. Nothing is raised:
    what does not fit sets a bit of status [1] (the STATUS_* of this module), which is passed from op to op. A row that
    does not fit in its bank is not written; a valid count is cut to the bank; a fixation entry that is neither -1 nor
    below visual_valid is left out.
    """
    past = (past_visual_key, past_visual_value, past_text_key, past_text_value)
    rows = query.shape[2]
    found = int(status[0])
    banks = []
    for bank, new, length, bit in zip(
        past,
        (key, value, key, value),
        (visual_length, visual_length, text_length, text_length),
        (STATUS_VISUAL_BANK_FULL, STATUS_VISUAL_BANK_FULL, STATUS_TEXT_BANK_FULL, STATUS_TEXT_BANK_FULL),
        strict=True,
    ):
        present = bank.copy()
        for b, start in enumerate(length.tolist()):
            for i in range(rows):
                if 0 <= start + i < bank.shape[2]:
                    present[b, :, start + i] = new[b, :, i]
                else:
                    found |= bit
        banks.append(present)
    cut_visual = np.clip(visual_valid, 0, past_visual_key.shape[2])
    cut_text = np.clip(text_valid, 0, past_text_key.shape[2])
    if (cut_visual != visual_valid).any() or (cut_text != text_valid).any():
        found |= STATUS_VALID_OUT_OF_RANGE
    nothing = np.zeros(len(query), np.int64)
    no_rows = (key[:, :, :0], value[:, :, :0])  # the banks are written already
    seen = (nothing, nothing, cut_visual, cut_text)
    if op == "focal":
        result = focal_attention(
            query, *no_rows, *banks, *seen, num_fixations, fixation_size, scale=scale, per_kv_head=per_kv_head
        )
        return Appended(result.output, *banks, result.fixation, np.array([found], np.int64))
    if op == "dense" or rows > 1 or attend_all[0] != 0:
        output = dense_attention(query, *no_rows, *banks, *seen, scale=scale).output
    else:
        if ((fixation < -1) | (fixation >= cut_visual[:, :1, None])).any():
            found |= STATUS_FIXATION_OUT_OF_RANGE
        visual, text = banks[:2], banks[2:]
        output = gathered_attention(
            query, *no_rows, *visual, *text, nothing, cut_visual, cut_text, fixation, scale=scale
        ).output
    return Appended(output, *banks, None, np.array([found], np.int64))


def _attend_all(query, visual_key, visual_value, text_key, text_value, visual_valid, text_valid, scale):
    """output [B,H,n,D], and the last row's mass on each visual row per KV head [B,KV,VCAP]."""
    batch, heads, rows, _ = query.shape
    kv_heads = visual_key.shape[1]
    group = heads // kv_heads
    output = np.zeros_like(query)
    mass = np.zeros((batch, kv_heads, visual_key.shape[2]), np.float64)
    for b in range(batch):
        for h in range(heads):
            g = h // group
            for i in range(rows):
                nv, nt = int(visual_valid[b, i]), int(text_valid[b, i])
                keys = np.concatenate([visual_key[b, g, :nv], text_key[b, g, :nt]])
                values = np.concatenate([visual_value[b, g, :nv], text_value[b, g, :nt]])
                weights = _softmax(keys @ query[b, h, i] * scale)
                output[b, h, i] = weights @ values
                if i == rows - 1:
                    mass[b, g, :nv] += weights[:nv]
    return output, mass


def _append(key, value, past_visual_key, past_visual_value, past_text_key, past_text_value, visual_length, text_length):
    return (
        _write(past_visual_key, key, visual_length, "visual"),
        _write(past_visual_value, value, visual_length, "visual"),
        _write(past_text_key, key, text_length, "text"),
        _write(past_text_value, value, text_length, "text"),
    )


def _write(past: Array, rows: Array, length: Index, bank: str) -> Array:
    present = past.copy()
    count = rows.shape[2]
    for b, start in enumerate(length):
        if start + count > past.shape[2]:
            raise ValueError(
                f"{count} new rows at {int(start)} pass the end of the {bank} bank, which holds {past.shape[2]} rows"
            )
        present[b, :, start : start + count] = rows[b]
    return present


def _softmax(scores: Array) -> Array:
    """Softmax of one row; no key at all gives no weight (the output is then zero)."""
    if scores.size == 0:
        return scores
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()
