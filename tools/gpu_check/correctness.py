"""Every op, dtype and shape against the oracle, on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from fastocr_trt import reference

from .cases import BANKS, Case, layer, state
from .implementations import SCALE, Implementation

# Largest error of one output value, as a share of the largest value, or of 1 where that is larger: a few units in the
# last place of the storage type. Over a long page the values are small, and so is what one lost row changes.
TOLERANCE = {torch.float32: 5e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}

DECODE = [
    Case(1, 28, 4, 128, 1024, 77, fixation_size=51),
    Case(3, 16, 2, 128, 300, 40, fixation_size=15),
    Case(2, 6, 2, 64, 130, 9, fixation_size=130),
    Case(2, 5, 1, 80, 65, 3, fixation_size=1),
    Case(1, 8, 8, 96, 33, 0, fixation_size=7),
    Case(2, 16, 1, 256, 40, 20, fixation_size=5),
    Case(4, 14, 2, 128, 200, 30, fixation_size=11, attend_all=True),
    Case(1, 28, 4, 128, 16384, 256, fixation_size=819),
]
PREFILL = [
    Case(1, 28, 4, 128, 500, 30, rows=64, fixation_size=25),
    Case(3, 16, 2, 128, 70, 10, rows=17, fixation_size=9),
    Case(2, 6, 2, 64, 40, 9, rows=5, fixation_size=4),
    Case(2, 5, 1, 80, 33, 3, rows=33, fixation_size=1),
]
SMALL = [Case(2, 4, 2, 32, 21, 6, fixation_size=5), Case(2, 3, 1, 16, 9, 4, rows=3, fixation_size=3)]


def check(implementation: Implementation, device: str, small: bool = False) -> Iterator[tuple[str, bool, str]]:
    """(what, whether it is right, detail) for every op, case and dtype. small: two tiny cases, for a dry run."""
    for case in SMALL if small else [*DECODE, *PREFILL]:
        for dtype in TOLERANCE:
            typed = case.smaller(dtype=dtype)
            tensors, shared = layer(typed, device), state(typed, device)
            for op in implementation.ops:
                if typed.attend_all and op == "gathered" and implementation.name != "CUDA kernels":
                    continue  # only the engine form has it
                if typed.rows > 1 and op == "gathered" and implementation.name != "CUDA kernels":
                    continue  # the plain form stays sparse in prefill; its tests have that
                own = implementation.prepare(tensors, typed)
                got = implementation.run(op, own, shared, typed)
                if device == "cuda":
                    torch.cuda.synchronize()
                yield f"{op} {_describe(typed)}", *_compare(op, got, own, tensors, shared, typed)


def _describe(case: Case) -> str:
    heads = f"{case.num_attention_heads}/{case.num_key_value_heads} heads of {case.head_dim}"
    return f"{str(case.dtype).removeprefix('torch.')}, {case.batch} pages of {case.visual}, {case.rows} rows, {heads}"


def _compare(op, got, own, tensors, shared, case: Case) -> tuple[bool, str]:
    arrays = [tensors[name].double().cpu().numpy() for name in ("query", "key", "value", *BANKS)]
    ints = {name: value.cpu().numpy() for name, value in shared.items()}
    lengths = [ints[name] for name in ("visual_length", "text_length", "visual_valid", "text_valid")]
    extra = {}
    if op == "focal":
        extra = {"num_fixations": ints["num_fixations"], "fixation_size": case.fixation_size}
    if op == "gathered":
        extra = {"fixation": ints["fixation"], "attend_all": ints["attend_all"]}
    want = reference.engine_form(op, *arrays, *lengths, ints["status"], scale=SCALE, **extra)
    error = float(np.abs(got["output"].double().cpu().numpy() - want.output).max())
    allowed = TOLERANCE[case.dtype] * min(1.0, float(np.abs(want.output).max()))
    problems = [] if error <= allowed else [f"off by {error:.2g}, allowed {allowed:.2g}"]
    text = own["text_key"].double().cpu().numpy()
    if not np.array_equal(text, want.present_text_key):
        problems.append("the text bank differs")
    if "status" in got and int(got["status"]) != int(want.status[0]):
        problems.append(f"status {int(got['status'])} for {int(want.status[0])}")
    if op == "focal":
        problems += _selection(got["fixation"].cpu().numpy(), want, arrays, lengths)
    return not problems, "; ".join(problems) or f"off by {error:.1g}"


def _selection(got: np.ndarray, result: reference.Appended, arrays: Sequence, lengths: Sequence) -> list[str]:
    """Two rows whose masses differ by less than rounding may change places at the border of the fixation: then the
    mass that was selected must still be the same."""
    want, present_text_key = result.fixation, result.present_text_key
    if np.array_equal(np.sort(got, -1), np.sort(want, -1)):
        return []
    for b, g in np.ndindex(*got.shape[:2]):
        mine, theirs = got[b, g][got[b, g] >= 0], want[b, g][want[b, g] >= 0]
        if len(set(mine.tolist())) != len(theirs):
            return [f"page {b}, KV head {g}: {len(set(mine.tolist()))} rows selected, not {len(theirs)}"]
        mass = _mass(arrays, present_text_key, lengths, b, g)
        if len(mine) and mine.max() >= len(mass):
            return [f"page {b}, KV head {g}: row {mine.max()} of a page of {len(mass)} selected"]
        difference = abs(mass[mine].sum() - mass[theirs].sum())
        if difference > 1e-3 * mass.sum():
            return [f"page {b}, KV head {g}: another selection, of a mass that differs by {difference:.2g}"]
    return []


def _mass(arrays: Sequence, present_text_key: np.ndarray, lengths: Sequence, b: int, g: int) -> np.ndarray:
    """The last query row's softmax mass on page b's visual rows, summed over the query heads of KV head g."""
    query, visual_key = arrays[0], arrays[3]
    group = query.shape[1] // visual_key.shape[1]
    visual, text = int(lengths[2][b, -1]), int(lengths[3][b, -1])
    keys = np.concatenate([visual_key[b, g, :visual], present_text_key[b, g, :text]])
    scores = query[b, g * group : (g + 1) * group, -1] @ keys.T * SCALE
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True))[:, :visual].sum(0)
