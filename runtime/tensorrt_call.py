"""One execution context and what it is bound to: shapes set when they change, a decode step captured and replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import EngineError
from .cuda_memory import Cuda, CudaError

log = logging.getLogger("fastocr_trt.tensorrt")


class Call:
    """A context on a stream. replays: run from a CUDA graph where it can.

    A context holds one graph: one that was captured at other shapes may not be replayed after the context ran with
    these (TensorRT asks for a context per graph), so the graph goes with the shapes. They are rounded up by the plan,
    so that they seldom change. The first run at new shapes is not captured, since TensorRT prepares itself in it.
    """

    def __init__(self, cuda: Cuda, context: Any, name: str, because: Callable[[], str], replays: bool) -> None:
        self._cuda, self._context, self._name, self._because = cuda, context, name, because
        self._replays = replays
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._graph: Any = None
        self._ready = False

    def bind(self, addresses: Mapping[str, int]) -> None:
        """Set the addresses of tensors, on the device."""
        self._forget()
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise EngineError(f"the engine {self._name} refuses a buffer for {name}{self._because()}")

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the shapes of inputs; EngineError for one that the profile does not hold."""
        changed = {name: shape for name, shape in shapes.items() if self._shapes.get(name) != shape}
        if changed:
            self._forget()
        for name, shape in changed.items():
            self._shapes.pop(name, None)
            if not self._context.set_input_shape(name, shape):
                raise EngineError(
                    f"the engine {self._name} was not built for {name} of shape {list(shape)}{self._because()}; lower "
                    "--keep or the batch, or build the engines again"
                )
            self._shapes[name] = shape

    def run(self, after: Callable[[], None] = lambda: None) -> None:
        """Give the stream one run, and what `after` gives it: the same at each run of the same shapes."""
        if self._graph is None and self._ready and self._replays:
            self._capture(after)
        if self._graph is not None:
            self._cuda.launch(self._graph)
            return
        self._enqueue()
        after()
        self._ready = True

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(int(self._cuda.stream)):
            raise EngineError(f"the engine {self._name} did not run{self._because()}")

    def _capture(self, after: Callable[[], None]) -> None:
        reason = "TensorRT says that its work cannot be captured"
        capturable = getattr(self._context, "is_stream_capturable", None)
        if capturable is None or capturable(int(self._cuda.stream)):
            try:
                self._cuda.begin_capture()
                try:
                    self._enqueue()
                    after()
                except BaseException:
                    self._cuda.abandon_capture()
                    raise
                self._graph = self._cuda.end_capture()
                return
            except (EngineError, CudaError) as error:
                reason = str(error)
        self._replays = False
        log.warning("%s runs without a CUDA graph, which makes a step a little slower: %s", self._name, reason)

    def _forget(self) -> None:
        """Drop the graph."""
        if self._graph is not None:
            self._cuda.release("cudaStreamSynchronize", self._cuda.stream)  # it may be running
            self._cuda.release("cudaGraphExecDestroy", self._graph)
            self._graph = None
        self._ready = False

    def close(self) -> None:
        self._forget()
        self._context = None
