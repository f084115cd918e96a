"""The KV cache as two banks a layer: allocated once, bound in place, never evicted from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ..manifest import Capacities, DecoderShape
from .buffers import Device

BANKS = ("visual_key", "visual_value", "text_key", "text_value")


class TwoBankCache:
    """`num_layers` times four buffers: visual [B,KV,VCAP,D] and text [B,KV,TCAP,D], in the model's dtype.

    VCAP and TCAP are the engine's maxima plus one prefill chunk, since new rows are written to both banks and only
    one of them grows. On the CPU the operating system gives memory to rows when they are first written.
    """

    def __init__(self, decoder: DecoderShape, capacities: Capacities, batch: int, dtype: str, device: Device) -> None:
        self.batch = batch
        self.rows = capacities.bank_rows
        shape = (batch, decoder.num_key_value_heads)
        self._buffers = {
            (layer, bank): device.zeros((*shape, self.rows[bank.split("_")[0]], decoder.head_dim), dtype)
            for layer in range(decoder.num_layers)
            for bank in BANKS
        }
        self._touched = {"visual": 0, "text": 0}

    def items(self) -> Iterator[tuple[str, object]]:
        """(`{layer}.{bank}`, the bound value) of every buffer: the same value is `past.*` and `present.*`."""
        for (layer, bank), buffer in self._buffers.items():
            yield f"{layer}.{bank}", buffer.value

    def array(self, layer: int, bank: str) -> np.ndarray | None:
        """The memory of one of BANKS, [B,KV,VCAP or TCAP,D]; None on a device."""
        return self._buffers[layer, bank].array

    def touch(self, kind: str, rows: int) -> None:
        """Remember that the bank of `kind` was written up to `rows`."""
        self._touched[kind] = max(self._touched[kind], min(rows, self.rows[kind]))

    def reserve(self, visual_length: np.ndarray, text_length: np.ndarray, rows: int) -> None:
        """Remember that `rows` new rows are written to both banks. ValueError as `check_room`."""
        check_room(self.rows, visual_length, text_length, rows)
        for kind, length in (("visual", visual_length), ("text", text_length)):
            self.touch(kind, int(length.max()) + rows)

    def clear(self) -> None:
        """Zero what the last pages wrote: a masked row must still be a finite number."""
        for (_, bank), buffer in self._buffers.items():
            buffer.clear_rows(self._touched[bank.split("_")[0]])
        self._touched = {"visual": 0, "text": 0}

    @property
    def nbytes(self) -> int:
        """Bytes of address space of all buffers (rows never written take none on the CPU)."""
        return sum(buffer.nbytes for buffer in self._buffers.values())


def check_room(bank_rows: Mapping[str, int], visual_length: np.ndarray, text_length: np.ndarray, rows: int) -> None:
    """Raise ValueError where `rows` new rows would pass the end of either bank: a defect of the caller."""
    for kind, length in (("visual", visual_length), ("text", text_length)):
        if int(length.max()) + rows > bank_rows[kind]:
            raise ValueError(f"{rows} rows at {int(length.max())} pass the {kind} bank's {bank_rows[kind]} rows")


def chunk_valid(
    kind: str, visual_length: np.ndarray, text_length: np.ndarray, counts: np.ndarray, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """visual_valid and text_valid [B,rows] of a prefill chunk of `kind`, of which counts [B] rows are real.

    Row i sees itself and the real rows before it; padding rows see what the last real row sees.
    """
    grown = np.minimum(np.arange(1, rows + 1)[None], counts[:, None])
    nothing = np.zeros_like(grown)
    visual, text = (grown, nothing) if kind == "visual" else (nothing, grown)
    return visual_length[:, None] + visual, text_length[:, None] + text
