"""Memory that an ONNX Runtime graph reads and writes in place, on the CPU or on a CUDA device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime as ort

NUMPY_TYPES: dict[str, Any] = {"fp32": np.float32, "fp16": np.float16, "int64": np.int64}
BFLOAT16 = 16  # onnx.TensorProto.BFLOAT16: numpy has no such type, so a device buffer is made by number
ITEM_SIZE = {"fp32": 4, "fp16": 2, "bf16": 2, "int64": 8}


@dataclass
class Buffer:
    """`value` is what a graph is bound to; `array` is the same memory on the CPU, and None on a device."""

    value: ort.OrtValue
    array: np.ndarray | None
    nbytes: int

    def clear_rows(self, rows: int) -> None:
        """Zero the first `rows` rows of axis 2. On a device there is nothing to do: its rows are finite."""
        if self.array is not None and rows:
            self.array[:, :, :rows] = 0

    def read(self) -> np.ndarray:
        """The content on the host: the memory itself on the CPU, a copy from a device."""
        return self.array if self.array is not None else self.value.numpy()

    def write(self, data: np.ndarray) -> None:
        """Replace the whole content."""
        if self.array is not None:
            self.array[...] = data
        else:
            self.value.update_inplace(np.ascontiguousarray(data))


class Device:
    """Where buffers live: `cpu` or `cuda`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def zeros(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        nbytes = int(np.prod(shape)) * ITEM_SIZE[dtype]
        if self.kind == "cpu":
            array = np.zeros(shape, NUMPY_TYPES[dtype])
            return Buffer(ort.OrtValue.ortvalue_from_numpy(array), array, nbytes)
        element = NUMPY_TYPES.get(dtype, BFLOAT16)
        return Buffer(ort.OrtValue.ortvalue_from_shape_and_type(list(shape), element, self.kind, 0), None, nbytes)

    def put(self, data: np.ndarray) -> Buffer:
        """A buffer with the content of `data`; on the CPU it is `data`'s own memory."""
        data = np.ascontiguousarray(data)
        if self.kind == "cpu":
            return Buffer(ort.OrtValue.ortvalue_from_numpy(data), data, data.nbytes)
        return Buffer(ort.OrtValue.ortvalue_from_numpy(data, self.kind, 0), None, data.nbytes)
