"""The attention kernels as a library: built with cmake, loaded with ctypes, called with arrays.

`python -m tools.kernel_library` builds the kernels for the CPU (CUDA C++ on fibers, see plugins/cpu/cuda_on_cpu.h)
and prints where the library is; `--cuda` builds them for GPUs; `--traffic` prints the bytes that each kernel moves.

    library = KernelLibrary(build())
    result = library.run("focal", query=..., key=..., ..., scale=0.125, num_fixations=counts, fixation_size=64)

Arrays are numpy arrays, or PyTorch tensors on the library's device; names and meaning are those of
`fastocr_trt.reference.engine_form`.
"""

from __future__ import annotations

import argparse
import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from fastocr_trt.reference import Appended
from tools import cmake
from tools.cmake import missing_tool

ROOT = Path(__file__).resolve().parents[1]
OPS = {"dense": 0, "focal": 1, "gathered": 2}
DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
BANKS = ("visual_key", "visual_value", "text_key", "text_value")


class Shape(ctypes.Structure):
    """FastocrShape of plugins/kernels/attention.h."""

    _fields_ = (
        ("op", c_int32),
        ("dtype", c_int32),
        ("batch", c_int32),
        ("num_attention_heads", c_int32),
        ("num_key_value_heads", c_int32),
        ("rows", c_int32),
        ("head_dim", c_int32),
        ("visual_capacity", c_int32),
        ("text_capacity", c_int32),
        ("fixation_size", c_int32),
        ("per_kv_head", c_int32),
        ("num_splits", c_int32),
        ("scale", c_float),
    )


class Tensors(ctypes.Structure):
    """FastocrTensors of plugins/kernels/attention.h."""

    _fields_ = tuple(
        (name, c_void_p)
        for name in (
            "query",
            "key",
            "value",
            "past_visual_key",
            "past_visual_value",
            "past_text_key",
            "past_text_value",
            "present_visual_key",
            "present_visual_value",
            "present_text_key",
            "present_text_value",
            "visual_length",
            "text_length",
            "visual_valid",
            "text_valid",
            "num_fixations",
            "fixation_in",
            "attend_all",
            "status_in",
            "output",
            "fixation_out",
            "status_out",
        )
    )


class KernelLibrary:
    """The C functions of attention.h, of the library at `path`."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._check = library.fastocr_check
        self._check.argtypes = [POINTER(Shape), c_char_p, c_size_t]
        self._workspace_size = library.fastocr_workspace_size
        self._workspace_size.argtypes = [POINTER(Shape)]
        self._workspace_size.restype = c_size_t
        self._run = library.fastocr_run
        self._run.argtypes = [POINTER(Shape), POINTER(Tensors), c_void_p, c_size_t, c_void_p]
        self._run.restype = c_int

    def check(self, shape: Shape) -> str | None:
        """What is wrong with `shape`, in a sentence; None where the kernels can run it."""
        message = ctypes.create_string_buffer(512)
        return message.value.decode() if self._check(shape, message, len(message)) else None

    def workspace_size(self, shape: Shape) -> int:
        """Bytes of workspace that `shape` needs; 0 for a shape that `check` refuses."""
        return self._workspace_size(shape)

    def run(
        self,
        op: str,
        *,
        scale: float,
        per_kv_head: bool = True,
        fixation_size: int = 0,
        num_splits: int = 0,
        workspace: Any = None,
        stream: int = 0,
        **arrays: Any,
    ) -> Appended:
        """Run one op (dense, focal, gathered) on contiguous arrays, and return its outputs.

        arrays: query, key, value, past_* (the four banks), *_length, *_valid, status; num_fixations for focal;
        fixation and attend_all for gathered. Optional: present_* (default: past_*, which are then changed in place),
        output, fixation_out, status_out (default: new arrays), workspace (any array of enough bytes).
        On a GPU the call only queues work on `stream` (a cudaStream_t as a number); keep the arrays until it is done.
        Raises ValueError for shapes that the kernels refuse, RuntimeError for a CUDA error.
        """
        given = dict(arrays)
        query, status = given["query"], given["status"]
        for bank in BANKS:
            given.setdefault(f"present_{bank}", given[f"past_{bank}"])
        shape = shape_of(
            op, given, scale=scale, per_kv_head=per_kv_head, fixation_size=fixation_size, num_splits=num_splits
        )
        wrong = self.check(shape) or _wrong_array(shape, given)
        if wrong:
            raise ValueError(wrong)
        if given.get("output") is None:
            given["output"] = _empty(query, tuple(query.shape))
        if given.get("status_out") is None:
            given["status_out"] = _empty(status, (1,))
        if op == "focal" and given.get("fixation_out") is None:
            sizes = (shape.batch, shape.num_key_value_heads, shape.fixation_size)
            given["fixation_out"] = _empty(status, sizes)
        if workspace is None:
            workspace = _empty(status, (self.workspace_size(shape) // 8 + 1,))
        names = {"fixation_in": "fixation", "status_in": "status"}
        pointers = {
            name: _pointer(given.get(names.get(name, name)), names.get(name, name)) for name, _ in Tensors._fields_
        }
        error = self._run(
            shape, Tensors(**pointers), _pointer(workspace, "workspace"), _bytes(workspace), c_void_p(stream)
        )
        if error:
            raise RuntimeError(f"fastocr_run returned CUDA error {error}")
        banks = (given[f"present_{bank}"] for bank in BANKS)
        return Appended(given["output"], *banks, given["fixation_out"] if op == "focal" else None, given["status_out"])


def shape_of(
    op: str,
    arrays: dict[str, Any],
    *,
    scale: float,
    per_kv_head: bool = True,
    fixation_size: int = 0,
    num_splits: int = 0,
) -> Shape:
    """The shape that `arrays` (of KernelLibrary.run) have; only focal takes fixation_size."""
    batch, heads, rows, head_dim = arrays["query"].shape
    name = str(arrays["query"].dtype).removeprefix("torch.")
    if op not in OPS or name not in DTYPES:
        raise ValueError(f"op {op!r} of {name} is not one of {list(OPS)} of {list(DTYPES)}")
    size = {"focal": fixation_size, "dense": 0, "gathered": arrays["fixation"].shape[2] if op == "gathered" else 0}[op]
    return Shape(
        op=OPS[op],
        dtype=DTYPES[name],
        batch=batch,
        num_attention_heads=heads,
        num_key_value_heads=arrays["key"].shape[1],
        rows=rows,
        head_dim=head_dim,
        visual_capacity=arrays["past_visual_key"].shape[2],
        text_capacity=arrays["past_text_key"].shape[2],
        fixation_size=size,
        per_kv_head=int(per_kv_head),
        num_splits=num_splits,
        scale=scale,
    )


def _wrong_array(shape: Shape, arrays: dict[str, Any]) -> str | None:
    """What is wrong with an array: its shape, its type or its strides."""
    batch, kv_heads, rows, head_dim = shape.batch, shape.num_key_value_heads, shape.rows, shape.head_dim
    dtype = str(arrays["query"].dtype)
    sizes = {"query": (batch, shape.num_attention_heads, rows, head_dim)}
    sizes["output"] = sizes["query"]
    sizes |= dict.fromkeys(("key", "value"), (batch, kv_heads, rows, head_dim))
    for bank in BANKS:
        capacity = shape.visual_capacity if bank.startswith("visual") else shape.text_capacity
        sizes |= dict.fromkeys((f"past_{bank}", f"present_{bank}"), (batch, kv_heads, capacity, head_dim))
    numbers = dict.fromkeys(("visual_length", "text_length", "num_fixations"), (batch,))
    numbers |= dict.fromkeys(("visual_valid", "text_valid"), (batch, rows))
    numbers |= dict.fromkeys(("status", "status_out", "attend_all"), (1,))
    numbers |= dict.fromkeys(("fixation", "fixation_out"), (batch, kv_heads, shape.fixation_size))
    for name, array in arrays.items():
        if array is None:
            continue
        want = (sizes | numbers).get(name)
        if want is None:
            return f"{name} is not an array of these ops"
        if tuple(array.shape) != want:
            return f"{name} has shape {list(array.shape)}; it must be {list(want)}"
        kind = str(array.dtype).removeprefix("torch.")
        if kind != (dtype.removeprefix("torch.") if name in sizes else "int64"):
            return f"{name} is {kind}; it must be {dtype if name in sizes else 'int64'}"
        if not (array.is_contiguous() if hasattr(array, "is_contiguous") else array.flags.c_contiguous):
            return f"{name} is not contiguous"
    return None


def _empty(like: Any, shape: tuple[int, ...]) -> Any:
    """An array without values, of the kind, type and device of `like`."""
    return like.new_empty(shape) if hasattr(like, "new_empty") else np.empty(shape, like.dtype)


def _pointer(array: Any, name: str) -> int | None:
    if array is None:
        return None
    if hasattr(array, "data_ptr"):
        return array.data_ptr()
    if not array.flags.writeable and name.startswith(("present", "output", "workspace")):
        raise ValueError(f"{name} is read-only, and the kernels write it")
    return array.ctypes.data


def _bytes(array: Any) -> int:
    return array.numel() * array.element_size() if hasattr(array, "numel") else array.nbytes


def build(*, cuda: bool = False, architecture: str = "") -> Path:
    """Build the kernels with cmake where they are not up to date, and return the library.

    For the CPU in build/kernels_cpu, for GPUs (cuda=True, which needs nvcc) in build/kernels_cuda; architecture: of one
    GPU alone, such as 89. Raises what `cmake.build` does.
    """
    directory = ROOT / "build" / ("kernels_cuda" if cuda else "kernels_cpu")
    options = {"FASTOCR_CUDA": "ON" if cuda else "OFF"}
    if architecture:
        options["FASTOCR_CUDA_ARCHITECTURES"] = f"{architecture}-real"
    target = "fastocr_kernels_shared" if cuda else "fastocr_kernels_cpu"
    cmake.build(ROOT / "plugins" / "kernels", directory, [target], options)
    return next(directory.rglob("libfastocr_kernels.so" if cuda else "libfastocr_kernels_cpu.so"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.kernel_library", description=__doc__.splitlines()[0])
    parser.add_argument("--cuda", action="store_true", help="build for GPUs, with nvcc")
    parser.add_argument("--traffic", action="store_true", help="print bytes moved by each kernel, and build nothing")
    arguments = parser.parse_args()
    if arguments.traffic:
        from tools.kernel_traffic import table

        print(table())
        return
    missing = missing_tool(cuda=arguments.cuda)
    if missing:
        parser.error(f"{missing} is not found; install it to build the kernels")
    print(build(cuda=arguments.cuda))


if __name__ == "__main__":
    main()
