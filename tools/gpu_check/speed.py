"""Times on the device: each op of a layer, and the attention of a whole decode step, against PyTorch's attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .cases import Case, layer, state
from .implementations import Implementation
from .timing import captured, medians

# Qwen2.5-VL-7B's decoder, at the policy that its layers would have by default: 1 dense, 3 focal, 24 gathered.
MODEL = {"num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128}
STEP = ("dense", *(("gathered",) * 8 + ("focal",)) * 3)
KEEP = 0.05
TEXT = 256
BATCHES, VISUAL = (1, 8, 32), (1024, 4096, 16384)
CHUNK = 256
CACHE_BYTES = 256 * 2**20  # the layers that take turns are together larger than any GPU's L2 cache


@dataclass(frozen=True)
class Timed:
    """Seconds of one op of one layer, and the bytes of K and V that it must read."""

    case: Case
    seconds: dict[tuple[str, str], float]  # (implementation, op)
    step: dict[tuple[str, str], float]  # (implementation, "dense" or "fast"): all layers of a decode step

    def must_read(self, op: str) -> int:
        rows = self.case.fixation_size if op == "gathered" else self.case.visual
        return self.case.batch * (rows + self.case.text + self.case.rows) * self.case.row_bytes()


def cases(small: bool) -> Iterator[Case]:
    if small:
        yield Case(2, 4, 2, 32, 40, 8, fixation_size=4, dtype=torch.float32, ragged=False)
        return
    for visual in VISUAL:
        for batch in BATCHES:
            yield Case(batch, **MODEL, visual=visual, text=TEXT, fixation_size=int(visual * KEEP), ragged=False)


def prefill_cases(small: bool) -> Iterator[Case]:
    """Chunks of a prompt: CHUNK text rows a page, after the page itself."""
    if small:
        yield Case(1, 4, 2, 32, 20, 3, rows=5, fixation_size=4, dtype=torch.float32, ragged=False)
        return
    for visual in (VISUAL[0], VISUAL[-1]):
        for batch in BATCHES[:2]:
            yield Case(batch, **MODEL, visual=visual, text=TEXT, rows=CHUNK, ragged=False)


def distinct_layers(case: Case, forms: int, free: int, small: bool) -> int:
    """How many layers take turns: enough to pass every cache, as many as fit, at most a model's; 0 where none fits.

    forms: copies of a layer, one per implementation and the first.
    """
    if small:
        return 1
    fits = int(free * 0.8) // (case.layer_bytes() * forms)
    return min(len(STEP), fits, max(2, -(-CACHE_BYTES // case.layer_bytes())))


def measure(case: Case, implementations: Sequence[Implementation], device: str, layers: int, rounds: int) -> Timed:
    """Times of every op of every implementation, interleaved. layers: how many distinct ones take turns.

    In prefill, where every op is dense, of that one alone.
    """
    shared = state(case, device)
    own = {
        implementation.name: [implementation.prepare(layer(case, device, i), case) for i in range(layers)]
        for implementation in implementations
    }

    def one_op(implementation: Implementation, op: str):
        return lambda: [implementation.run(op, tensors, shared, case) for tensors in own[implementation.name]]

    def one_step(implementation: Implementation, kinds: Sequence[str]):
        mine = own[implementation.name]
        return lambda: [implementation.run(op, mine[i % layers], shared, case) for i, op in enumerate(kinds)]

    decoding = case.rows == 1
    wanted = [(i, op) for i in implementations for op in i.ops if decoding or op == "dense"]
    ops = {(i.name, op): captured(one_op(i, op), device) for i, op in wanted}
    seconds = {key: value / layers for key, value in medians(ops, device, rounds).items()}
    kinds = {"dense": ("dense",) * len(STEP), "fast": STEP}
    whole = {
        (i.name, mode): captured(one_step(i, kinds[mode]), device)
        for i in implementations
        for mode in kinds
        if decoding and set(kinds[mode]) <= set(i.ops)
    }
    return Timed(case, seconds, medians(whole, device, rounds))


def op_rows(timed: Timed) -> Iterator[list[str]]:
    """Table rows: op, implementation, microseconds, achieved bandwidth in GB/s, ratio to the fastest dense form.

    `select` is what focal attention takes longer than dense attention of the same implementation.
    """
    dense = min(seconds for (_, op), seconds in timed.seconds.items() if op == "dense")
    size = [f"{timed.case.visual}", f"{timed.case.batch}"]
    for (name, op), seconds in sorted(timed.seconds.items(), key=lambda item: (item[0][1], item[0][0])):
        rate = timed.must_read(op) / seconds / 1e9
        yield [*size, op, name, f"{seconds * 1e6:.1f}", f"{rate:.0f}", f"{dense / seconds:.2f}x"]
        if op == "focal":
            yield [*size, "select", name, f"{(seconds - timed.seconds[name, 'dense']) * 1e6:.1f}", "", ""]


def step_rows(timed: Timed) -> Iterator[list[str]]:
    """Table rows: the attention of a decode step, dense and fast, and the ratio to the fastest dense form."""
    dense = min(seconds for (_, mode), seconds in timed.step.items() if mode == "dense")
    for (name, mode), seconds in sorted(timed.step.items(), key=lambda item: (item[0][1], item[0][0])):
        size = [f"{timed.case.visual}", f"{timed.case.batch}"]
        yield [*size, mode, name, f"{seconds * 1e3:.3f}", f"{dense / seconds:.2f}x"]


def prefill_rows(timed: Timed) -> Iterator[list[str]]:
    """Table rows: implementation, microseconds of a layer's chunk, TFLOP/s of both products, ratio to PyTorch."""
    case = timed.case
    flops = (
        4 * case.batch * case.num_attention_heads * case.rows * (case.visual + case.text + case.rows) * case.head_dim
    )
    base = timed.seconds["torch sdpa", "dense"]
    for (name, _), seconds in sorted(timed.seconds.items()):
        size = [f"{case.visual}", f"{case.batch}", name]
        yield [*size, f"{seconds * 1e6:.1f}", f"{flops / seconds / 1e12:.1f}", f"{base / seconds:.2f}x"]
