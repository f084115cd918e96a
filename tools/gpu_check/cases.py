"""Random attention calls in the engine form, as torch tensors: one layer, or several that share lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """visual, text: rows of each bank in use by the longest page, before the new rows; `ragged` pages are shorter."""

    batch: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    visual: int
    text: int
    rows: int = 1
    fixation_size: int = 8
    dtype: torch.dtype = torch.float16
    ragged: bool = True
    attend_all: bool = False

    def row_bytes(self) -> int:
        """Bytes of one row of K and V over all KV heads."""
        return 2 * self.num_key_value_heads * self.head_dim * self.dtype.itemsize

    def layer_bytes(self) -> int:
        """Bytes of one layer's banks."""
        return self.batch * (self.visual + self.text + 2 * self.rows) * self.row_bytes()

    def smaller(self, **changes) -> Case:
        return replace(self, **changes)


BANKS = ("visual_key", "visual_value", "text_key", "text_value")


def state(case: Case, device: str, seed: int = 0) -> dict[str, Tensor]:
    """Lengths, valid counts, fixation and the other int64 inputs that all layers share. New rows are text."""
    make = torch.Generator().manual_seed(seed)
    visual = torch.full((case.batch,), case.visual)
    text = torch.full((case.batch,), case.text)
    if case.ragged:
        visual[1:] = torch.randint(0, case.visual + 1, (case.batch - 1,), generator=make)
        text[1:] = torch.randint(0, case.text + 1, (case.batch - 1,), generator=make)
    fixation = torch.full((case.batch, case.num_key_value_heads, case.fixation_size), -1)
    counts = torch.minimum(torch.full((case.batch,), case.fixation_size), visual)
    for b in range(case.batch):
        for g in range(case.num_key_value_heads):
            chosen = torch.randperm(max(1, int(visual[b])), generator=make)[: int(counts[b])]
            fixation[b, g, : len(chosen)] = chosen.sort().values
    steps = torch.arange(1, case.rows + 1)
    values = {
        "visual_length": visual,
        "text_length": text,
        "visual_valid": visual[:, None].expand(-1, case.rows).contiguous(),
        "text_valid": text[:, None] + steps,
        "num_fixations": counts,
        "fixation": fixation,
        "attend_all": torch.tensor([int(case.attend_all)]),
        "status": torch.zeros(1, dtype=torch.int64),
    }
    return {name: value.to(device) for name, value in values.items()}


def layer(case: Case, device: str, seed: int = 0) -> dict[str, Tensor]:
    """query, key, value and one layer's banks; made on the device, where a large one is made quickly."""
    make = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=make, device=device, dtype=torch.float32).to(case.dtype)

    kv, dim = case.num_key_value_heads, case.head_dim
    capacity = {"visual": case.visual + case.rows, "text": case.text + case.rows}
    tensors = {
        "query": normal(case.batch, case.num_attention_heads, case.rows, dim),
        "key": normal(case.batch, kv, case.rows, dim),
        "value": normal(case.batch, kv, case.rows, dim),
    }
    for bank in BANKS:
        tensors[bank] = torch.empty(case.batch, kv, capacity[bank.split("_")[0]], dim, dtype=case.dtype, device=device)
        tensors[bank].normal_(generator=make)
    return tensors
