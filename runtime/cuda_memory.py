"""CUDA's runtime API as this project uses it: every call checked, every allocation known by name and freed."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Any

import numpy as np

from ..errors import EngineError

OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class CudaError(EngineError):
    """A call that failed; `code` is the cudaError_t."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(
            f"{call} failed on the GPU: {text} (CUDA error {code}); load the engine again, and run `fastocr-doctor` "
            "where that does not help"
        )
        self.code = code


class Cuda:
    """The calls, on one stream of their own. cudart: the module `cuda.bindings.runtime`.

    Addresses are ints, sizes bytes. Everything but `wait`, `write` and `read` returns at once.
    """

    def __init__(self, cudart: Any) -> None:
        self._cudart = cudart
        self._kind = cudart.cudaMemcpyKind
        self.stream = self.call("cudaStreamCreateWithFlags", cudart.cudaStreamNonBlocking)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call `name`; its result, a tuple where there are several. CudaError where it fails."""
        error, *values = getattr(self._cudart, name)(*arguments)
        if int(error) != 0:
            raise CudaError(name, int(error), self._text(error))
        return values[0] if len(values) == 1 else tuple(values)

    def release(self, name: str, *arguments: Any) -> None:
        """Call `name`, which gives something back: after a fatal error all of these fail too, and the first is told."""
        with suppress(CudaError):
            self.call(name, *arguments)

    def _text(self, error: Any) -> str:
        _, text = self._cudart.cudaGetErrorString(error)
        return text.decode() if isinstance(text, bytes) else str(text)

    def wait(self) -> None:
        """Until the stream has done all it was given."""
        self.call("cudaStreamSynchronize", self.stream)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """Within the device."""
        self.call("cudaMemcpyAsync", target, source, nbytes, self._kind.cudaMemcpyDeviceToDevice, self.stream)

    def fetch(self, target: int, source: int, nbytes: int) -> None:
        """To pinned host memory; there after `wait`."""
        self.call("cudaMemcpyAsync", target, source, nbytes, self._kind.cudaMemcpyDeviceToHost, self.stream)

    def zero(self, target: int, nbytes: int) -> None:
        self.call("cudaMemsetAsync", target, 0, nbytes, self.stream)

    def write(self, target: int, data: np.ndarray) -> None:
        """The array to the device. Waits: the array is pageable memory of Python's, and may go after the call."""
        data = np.ascontiguousarray(data)
        if data.nbytes:
            kind = self._kind.cudaMemcpyHostToDevice
            self.call("cudaMemcpyAsync", target, data.ctypes.data, data.nbytes, kind, self.stream)
            self.wait()

    def read(self, source: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """What the device holds once the stream has done all it was given."""
        result = np.empty(shape, dtype)
        if result.nbytes:
            kind = self._kind.cudaMemcpyDeviceToHost
            self.call("cudaMemcpyAsync", result.ctypes.data, source, result.nbytes, kind, self.stream)
        self.wait()
        return result

    def begin_capture(self) -> None:
        # Thread-local: another session's thread may allocate meanwhile without breaking this capture.
        mode = self._cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self.call("cudaStreamBeginCapture", self.stream, mode)

    def end_capture(self) -> Any:
        """What was given to the stream since `begin_capture`, as an executable graph."""
        graph = self.call("cudaStreamEndCapture", self.stream)
        try:
            return self.call("cudaGraphInstantiate", graph, 0)
        finally:
            self.release("cudaGraphDestroy", graph)

    def abandon_capture(self) -> None:
        """Leave a capture that failed, so that the stream can be used again."""
        with suppress(CudaError):
            if graph := self.call("cudaStreamEndCapture", self.stream):
                self.release("cudaGraphDestroy", graph)

    def launch(self, graph: Any) -> None:
        self.call("cudaGraphLaunch", graph, self.stream)

    def free_and_total(self) -> tuple[int, int]:
        return self.call("cudaMemGetInfo")

    def close(self) -> None:
        if self.stream is not None:
            self.release("cudaStreamDestroy", self.stream)
            self.stream = None


class Memory:
    """Allocations by name: on the device, or pinned on the host. `close` frees all; so does any error in between."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._held: dict[str, tuple[str, int, int]] = {}  # name -> call that frees, address, bytes

    def allocate(self, name: str, nbytes: int) -> int:
        """Device memory of at least one byte; its address, a multiple of 256. The name must be free."""
        return self._take(name, nbytes, "cudaMalloc", "cudaFree", max(1, nbytes))

    def pin(self, name: str, nbytes: int) -> int:
        """Host memory that the device copies to without waiting."""
        return self._take(name, nbytes, "cudaHostAlloc", "cudaFreeHost", nbytes, 0)

    def reserve(self, name: str, nbytes: int) -> int:
        """As `allocate`, but an allocation of that name that is large enough stays; a smaller one goes first."""
        if self.size(name) >= max(1, nbytes):
            return self.address(name)
        self.free(name)
        return self.allocate(name, nbytes)

    def _take(self, name: str, nbytes: int, call: str, free: str, *arguments: int) -> int:
        if name in self._held:
            raise ValueError(f"{name} is allocated already")
        address = int(self._cuda.call(call, *arguments))
        self._held[name] = (free, address, max(1, nbytes))
        return address

    def address(self, name: str) -> int:
        return self._held[name][1]

    def size(self, name: str) -> int:
        """Bytes of `name`, 0 where there is no such allocation."""
        return self._held[name][2] if name in self._held else 0

    def free(self, *names: str) -> None:
        """Free these; a name that is not allocated is passed over."""
        for name in names:
            if name in self._held:
                call, address, _ = self._held.pop(name)
                self._cuda.release(call, address)

    def close(self) -> None:
        self.free(*reversed(list(self._held)))


def view(address: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Host memory at `address` as an array, for as long as it is allocated."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype).reshape(shape)
