"""Stream a checkpoint's weights into one file that all graphs read as ONNX external data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor

from .checkpoint import Checkpoint
from .graph import Stored
from .quantize import quantize

WEIGHTS_NAME = "weights.bin"
ALIGNMENT = 4096  # bytes; ONNX Runtime maps external data that starts on a page
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_IR_DTYPES = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.uint8: ir.DataType.UINT8,
}


@dataclass(frozen=True)
class Placed:
    """Where a stored weight lies in the file."""

    offset: int
    length: int
    dtype: ir.DataType
    shape: tuple[int, ...]


def write_weights(
    path: Path,
    entries: Iterable[Stored],
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    progress: Callable[[float], None] = lambda share: None,
) -> dict[str, Placed]:
    """Write every entry to `path`, a shard and a tensor at a time; gives its place by initializer name.

    Floating-point weights are cast to `dtype`. Raises ExportError where the checkpoint lacks a parameter.
    """
    by_shard: dict[Path, dict[str, list[Stored]]] = {}
    for entry in {entry.name: entry for entry in entries}.values():
        sources = by_shard.setdefault(checkpoint.shard_of(entry.source), {})
        sources.setdefault(entry.source, []).append(entry)
    total, done = sum(map(len, by_shard.values())), 0
    placed: dict[str, Placed] = {}
    with path.open("wb") as file:
        for shard in sorted(by_shard):
            with checkpoint.open(shard) as read:
                for source, stored in by_shard[shard].items():
                    weight = read(source).to(dtype)
                    for name, tensor in _forms(weight, stored):
                        placed[name] = _append(file, tensor)
                    del weight
                    done += 1
                    progress(done / total)
    return placed


def bind(model: ir.Model, placed: dict[str, Placed], file_name: str = WEIGHTS_NAME) -> None:
    """Give a graph's stored initializers their place in the file. Call before saving it beside that file."""
    for name, value in model.graph.initializers.items():
        if (place := placed.get(name)) is not None:
            shape = ir.Shape(place.shape)
            value.const_value = ir.ExternalTensor(
                file_name, place.offset, place.length, place.dtype, shape=shape, name=name
            )
            value.dtype, value.shape = place.dtype, shape


def _forms(weight: Tensor, entries: list[Stored]) -> Iterable[tuple[str, Tensor]]:
    for entry in entries:
        if entry.form == "plain":
            yield entry.name, weight.contiguous()
        elif entry.form == "transposed":
            yield entry.name, weight.t().contiguous()
    quantised = {entry.form: entry for entry in entries if entry.form in ("packed", "scales")}
    if quantised:
        packed, scales = quantize(weight, quantised["packed"].bits)
        yield quantised["packed"].name, packed
        yield quantised["scales"].name, scales


def _append(file, tensor: Tensor) -> Placed:
    offset = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    file.seek(offset)
    file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
    return Placed(offset, tensor.nbytes, _IR_DTYPES[tensor.dtype], tuple(tensor.shape))
