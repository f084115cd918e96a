"""Bytes that each kernel moves, by its design, against the bytes that the op must move.

What must move is what a perfect single kernel would: each cached row that may be seen read once, new rows read once and
written to both banks, queries and lengths read, outputs written. What a kernel adds (partial results of splits, scores
kept for the selection, masses read several times) is counted as moved, with nothing that must. Reads that a cache
serves, such as a query row read by several blocks, count once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

HEADS_PER_BLOCK = 16  # of one KV head (plugins/kernels/decode_problem.cuh)
FEWEST_ROWS = 32
MOST_SPLITS = 128
MOST_BLOCKS = 1024
BLOCKS_PER_MULTIPROCESSOR = 4
DIGITS = 3  # passes of the radix select
PREFILL_QUERIES = 64  # query rows times heads of the group that share one reading of the keys


class Traffic(NamedTuple):
    """Bytes of one launch."""

    kernel: str
    must: int
    moved: int


@dataclass(frozen=True)
class Call:
    """One op on one device. Lengths are those of every page; sizes as in plugins/kernels/attention.h."""

    op: str
    visual_rows: int
    text_rows: int
    batch: int = 1
    num_attention_heads: int = 16
    num_key_value_heads: int = 2
    head_dim: int = 128
    element_bytes: int = 2
    rows: int = 1
    fixation_size: int = 0
    visual_capacity: int = 16384
    text_capacity: int = 4096
    multiprocessors: int = 132

    @property
    def attended(self) -> int:
        """Rows of both banks that a query row sees."""
        visual = self.fixation_size if self.op == "gathered" and self.rows == 1 else self.visual_rows
        return visual + self.text_rows

    @property
    def splits(self) -> int:
        """Splits that have rows."""
        head_blocks = -(-self.num_attention_heads // self.num_key_value_heads // HEADS_PER_BLOCK)
        blocks = self.batch * self.num_key_value_heads * head_blocks
        wanted = min(MOST_BLOCKS, BLOCKS_PER_MULTIPROCESSOR * self.multiprocessors) // blocks
        useful = -(-(self.visual_capacity + self.text_capacity) // FEWEST_ROWS)
        splits = max(1, min(wanted, useful, MOST_SPLITS))
        share = max(FEWEST_ROWS, -(-self.attended // splits))
        return -(-self.attended // share)


def traffic(call: Call) -> list[Traffic]:
    """Bytes of each kernel that `call` launches, in order."""
    pages_heads = call.batch * call.num_attention_heads
    pages_kv = call.batch * call.num_key_value_heads
    row = call.head_dim * call.element_bytes
    group = call.num_attention_heads // call.num_key_value_heads
    head_blocks = -(-group // HEADS_PER_BLOCK)

    new = pages_kv * call.rows * 2 * row  # keys and values
    lengths = call.batch * 8 * (2 + 2 * call.rows) + 16
    kernels = [Traffic("append_rows", 3 * new + lengths, 3 * new + lengths)]

    cached = pages_kv * call.attended * 2 * row
    queries = pages_heads * call.rows * row
    if call.rows > 1:
        readings = -(-call.rows * group // PREFILL_QUERIES)
        kernels.append(Traffic("dense_prefill", cached + 2 * queries, readings * cached + 2 * queries))
        if call.op != "focal":
            return kernels
    decode_must = cached + 2 * pages_heads * row if call.rows == 1 else 0
    entries = pages_kv * call.fixation_size * 8
    kept = pages_heads * call.visual_rows * 4 if call.op == "focal" else 0
    parts = pages_heads * call.splits * (call.head_dim + 1) * 4 if call.splits > 1 else 0
    written = parts or pages_heads * row
    reads = head_blocks * (cached + (entries if call.op == "gathered" else 0)) + pages_heads * row
    must = decode_must + (entries if call.op == "gathered" else 0)
    kernels.append(
        Traffic("decode_attention", must - (pages_heads * row if parts and must else 0), reads + written + kept)
    )
    if parts:
        output = pages_heads * row
        kernels.append(Traffic("merge_splits", output if decode_must else 0, parts + output))
    if call.op == "focal":
        masses = pages_kv * call.visual_rows * 4
        kernels.append(Traffic("visual_mass", 0, kept + masses))
        kernels.append(Traffic("select_topk", entries, (DIGITS + 1) * masses + entries))
    return kernels


CALLS = (
    ("dense, 16k", Call("dense", 16384, 512)),
    ("focal, 16k", Call("focal", 16384, 512, fixation_size=820)),
    ("gathered 5% of 16k", Call("gathered", 16384, 512, fixation_size=820)),
    ("gathered 5% of 4k", Call("gathered", 4096, 512, fixation_size=205)),
    ("gathered 5% of 4k, batch 32", Call("gathered", 4096, 512, fixation_size=205, batch=32)),
    ("focal 4k, batch 32", Call("focal", 4096, 512, fixation_size=205, batch=32)),
    ("prefill of 512 rows, 4k", Call("dense", 4096, 64, rows=512)),
)


def table() -> str:
    """The kernels of some calls of a decoder layer, as Markdown that says what is counted."""
    shape = Call("dense", 0, 0)
    lines = [
        f"Bytes of one call of a decoder layer of {shape.num_attention_heads} query heads, "
        f"{shape.num_key_value_heads} KV heads and head_dim {shape.head_dim}, in {8 * shape.element_bytes} bits, "
        f"on a GPU of {shape.multiprocessors} multiprocessors; counted from the kernels' design.",
        "",
    ]
    lines += ["| call | kernel | must move | moves | ratio |", "|---|---|--:|--:|--:|"]
    for name, call in CALLS:
        kernels = traffic(call)
        total = Traffic("all", sum(k.must for k in kernels), sum(k.moved for k in kernels))
        for kernel in (*kernels, total):
            ratio = f"{kernel.moved / kernel.must:.2f}" if kernel.must else "-"
            lines.append(f"| {name} | {kernel.kernel} | {kernel.must:,} | {kernel.moved:,} | {ratio} |")
    return "\n".join(lines)
