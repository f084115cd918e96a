"""A TensorRT and a CUDA of numpy: device memory is host memory, an engine an ONNX graph, a stream runs when waited for.

What a GPU would do wrong in silence fails here: memory comes full of NaN, work that is queued is not done until the
stream is waited for, an output may share an input's memory only where it is a bank, a graph replays the addresses and
shapes of its capture, and everything taken must be given back.
"""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort

TYPES = {"FLOAT": np.float32, "HALF": np.float16, "INT64": np.int64}
NAMES = {"tensor(float)": "FLOAT", "tensor(float16)": "HALF", "tensor(int64)": "INT64"}


class Kind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class Stream(int):
    """A handle that can be an int, as cuda.bindings' are."""


@dataclass
class FakeCuda:
    """The module cuda.bindings.runtime. limit: bytes of device memory. fail_at: the number of the call that fails."""

    limit: int = 2**40
    fail_at: int | None = None
    fail_call: str | None = None
    capability: tuple[int, int] = (8, 9)
    devices: int = 1
    calls: list[str] = field(default_factory=list)
    memory: dict[int, np.ndarray] = field(default_factory=dict)  # aligned address -> bytes
    pinned: dict[int, np.ndarray] = field(default_factory=dict)
    queue: list = field(default_factory=list)
    capture: list | None = None
    graphs: dict[int, list] = field(default_factory=dict)
    streams: set[int] = field(default_factory=set)
    launches: int = 0

    cudaMemcpyKind = Kind
    cudaStreamNonBlocking = 1
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)
    cudaDeviceAttr = SimpleNamespace(cudaDevAttrComputeCapabilityMajor=75, cudaDevAttrComputeCapabilityMinor=76)

    def _count(self, name: str) -> int:
        self.calls.append(name)
        return 700 if self.fail_at == len(self.calls) - 1 or self.fail_call == name else 0

    def held(self) -> int:
        """Things that were taken and not given back."""
        return len(self.memory) + len(self.pinned) + len(self.graphs) + len(self.streams)

    def find(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes at an address; an access beyond an allocation is what would crash a GPU."""
        for base, block in (*self.memory.items(), *self.pinned.items()):
            if base <= address and address + nbytes <= base + len(block):
                return block[address - base : address - base + nbytes]
        raise AssertionError(f"{nbytes} bytes at {address:#x} belong to no allocation")

    def give(self, work) -> None:
        (self.queue if self.capture is None else self.capture).append(work)

    def drain(self) -> None:
        assert self.capture is None, "the host waits for a stream that is being captured"
        work, self.queue = self.queue, []
        for item in work:
            item()

    def cudaGetErrorString(self, error):
        return 0, {2: b"out of memory", 35: b"driver too old"}.get(int(error), b"an illegal memory access")

    def cudaGetDeviceCount(self):
        return (0, self.devices) if self.devices else (35, None)

    def cudaGetDevice(self):
        return 0, 0

    def cudaDeviceGetAttribute(self, which, device):
        return 0, self.capability[which - 75]

    def cudaStreamCreateWithFlags(self, flags):
        if error := self._count("cudaStreamCreateWithFlags"):
            return error, None
        stream = Stream(4096 + len(self.calls))
        self.streams.add(stream)
        return 0, stream

    def cudaStreamDestroy(self, stream):
        error = self._count("cudaStreamDestroy")
        self.streams.discard(stream)
        return (error,)

    def cudaStreamSynchronize(self, stream):
        if error := self._count("cudaStreamSynchronize"):
            return (error,)
        self.drain()
        return (0,)

    def cudaMalloc(self, nbytes):
        if error := self._count("cudaMalloc"):
            return error, None
        if nbytes + sum(map(len, self.memory.values())) > self.limit:
            return 2, None
        assert self.capture is None
        whole = np.full(nbytes + 256, 0xFF, np.uint8)  # NaN in every float type
        start = -whole.ctypes.data % 256
        self.memory[whole.ctypes.data + start] = whole[start : start + nbytes]
        return 0, whole.ctypes.data + start

    def cudaFree(self, address):
        error = self._count("cudaFree")
        if not error and self.capture is None:
            self.drain()
        del self.memory[address]
        return (error,)

    def cudaHostAlloc(self, nbytes, flags):
        if error := self._count("cudaHostAlloc"):
            return error, None
        block = np.full(nbytes, 0xEE, np.uint8)
        self.pinned[block.ctypes.data] = block
        return 0, block.ctypes.data

    def cudaFreeHost(self, address):
        error = self._count("cudaFreeHost")
        del self.pinned[address]
        return (error,)

    def cudaMemGetInfo(self):
        return 0, self.limit - sum(map(len, self.memory.values())), self.limit

    def cudaMemsetAsync(self, address, value, nbytes, stream):
        if error := self._count("cudaMemsetAsync"):
            return (error,)
        self.give(lambda: self.find(address, nbytes).fill(value))
        return (0,)

    def cudaMemcpyAsync(self, target, source, nbytes, kind, stream):
        if error := self._count("cudaMemcpyAsync"):
            return (error,)

        def host(address):
            return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)

        def copy():
            into = host(target) if kind == Kind.cudaMemcpyDeviceToHost else self.find(target, nbytes)
            into[:] = host(source) if kind == Kind.cudaMemcpyHostToDevice else self.find(source, nbytes)

        self.give(copy)
        return (0,)

    def cudaStreamBeginCapture(self, stream, mode):
        if error := self._count("cudaStreamBeginCapture"):
            return (error,)
        self.capture = []
        return (0,)

    def cudaStreamEndCapture(self, stream):
        work, self.capture = self.capture, None
        if error := self._count("cudaStreamEndCapture"):
            return error, None
        return 0, work

    def cudaGraphInstantiate(self, graph, flags):
        if error := self._count("cudaGraphInstantiate"):
            return error, None
        handle = len(self.calls)
        self.graphs[handle] = graph
        return 0, handle

    def cudaGraphDestroy(self, graph):
        return (self._count("cudaGraphDestroy"),)

    def cudaGraphExecDestroy(self, graph):
        error = self._count("cudaGraphExecDestroy")
        del self.graphs[graph]
        return (error,)

    def cudaGraphLaunch(self, graph, stream):
        if error := self._count("cudaGraphLaunch"):
            return (error,)
        self.launches += 1
        for work in self.graphs[graph]:
            self.give(work)
        return (0,)


class Context:
    """An execution context: what is set by the names, run when the stream gets there."""

    def __init__(self, cuda: FakeCuda, engine: Engine):
        self.cuda, self.engine = cuda, engine
        self.addresses: dict[str, int] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.ran_at: dict | None = None
        self.memory = None

    def set_device_memory(self, address, size):
        assert address % 256 == 0 and size >= self.engine.device_memory
        self.memory = address

    def set_optimization_profile_async(self, profile, stream):
        self.cuda.give(lambda: None)
        self.profile = profile
        return profile < self.engine.num_optimization_profiles

    def set_tensor_address(self, name, address):
        assert address % 256 == 0, f"{name} lies at {address:#x}"
        self.addresses[name] = address
        return name in self.engine.io

    def set_input_shape(self, name, shape):
        low, _, high = self.engine.get_tensor_profile_shape(name, self.profile)
        if len(shape) != len(low) or not all(a <= s <= b for a, s, b in zip(low, shape, high, strict=True)):
            return False
        self.shapes[name] = tuple(shape)
        return True

    def is_stream_capturable(self, stream):
        return self.engine.capturable

    def execute_async_v3(self, stream):
        if self.engine.broken or set(self.addresses) != set(self.engine.io) or set(self.shapes) != self.engine.inputs:
            return False
        if self.cuda.capture is not None and self.ran_at != self.shapes:
            return False  # TensorRT asks for one run at these shapes before a capture
        self.ran_at = dict(self.shapes)
        addresses, shapes = dict(self.addresses), dict(self.shapes)
        self.cuda.give(lambda: self.engine.run(self.cuda, addresses, shapes))
        return True


class Engine:
    """A graph with profiles: {"graph": path, "profiles": {name: {input: [min, max]}}} as JSON."""

    device_memory = 1024
    capturable = True
    broken = False

    def __init__(self, cuda: FakeCuda, spec: dict, evaluate) -> None:
        self.cuda, self.spec = cuda, spec
        self.device_memory_size_v2 = self.device_memory
        self.evaluate = evaluate(spec["graph"])
        self.io = {name: (mode, dtype, shape) for name, mode, dtype, shape in self.evaluate.tensors()}
        self.inputs = {name for name, (mode, *_) in self.io.items() if mode == "input"}
        self.num_io_tensors = len(self.io)
        self.num_optimization_profiles = len(spec["profiles"])

    def get_tensor_name(self, index):
        return list(self.io)[index]

    def get_tensor_mode(self, name):
        return self.io[name][0]

    def get_tensor_dtype(self, name):
        return SimpleNamespace(name=self.io[name][1])

    def get_tensor_shape(self, name):
        return self.io[name][2]

    def get_device_memory_size_for_profile_v2(self, profile):
        return self.device_memory

    def get_tensor_profile_shape(self, name, profile):
        given = list(self.spec["profiles"].values())[profile].get(name)
        _, _, shape = self.io[name]
        low = given[0] if given else [max(1, s) if s != -1 else 1 for s in shape]
        high = given[1] if given else [s if s != -1 else 10**6 for s in shape]
        return [tuple(low), tuple(high), tuple(high)]

    def create_execution_context(self, strategy):
        return Context(self.cuda, self)

    def run(self, cuda, addresses, shapes):
        def at(name, shape):
            dtype = np.dtype(TYPES[self.io[name][1]])
            return cuda.find(addresses[name], int(np.prod(shape)) * dtype.itemsize).view(dtype).reshape(shape)

        feeds = {name: at(name, shapes[name]).copy() for name in self.inputs}
        results = self.evaluate(feeds)
        spans = {name: range(addresses[name], addresses[name] + feeds[name].nbytes) for name in self.inputs}
        for name, value in results.items():
            begin, end = addresses[name], addresses[name] + value.nbytes
            for other, span in spans.items():
                own = name.replace("present.", "past.") == other
                assert own or end <= span.start or begin >= span.stop, f"{name} is written over {other}"
            at(name, value.shape)[...] = value


class OrtGraph:
    """An ONNX graph in ONNX Runtime, by names."""

    def __init__(self, path: str):
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def tensors(self):
        for mode, values in (("input", self.session.get_inputs()), ("output", self.session.get_outputs())):
            for value in values:
                shape = tuple(s if isinstance(s, int) else -1 for s in value.shape)
                yield value.name, mode, NAMES[value.type], shape

    def __call__(self, feeds):
        names = [o.name for o in self.session.get_outputs()]
        return dict(zip(names, self.session.run(names, feeds), strict=True))


class OracleGraph:
    """A graph whose ops are in the engine form, by names: onnx's reference with the oracle for the ops."""

    def __init__(self, path: str):
        import onnx
        from onnx.reference import ReferenceEvaluator
        from test_engine_graph import DenseAttention, FocalAttention, GatheredAttention

        self.model = onnx.load(path)
        self.evaluator = ReferenceEvaluator(self.model, new_ops=[DenseAttention, FocalAttention, GatheredAttention])

    def tensors(self):
        types = {1: "FLOAT", 7: "INT64"}
        for mode, values in (("input", self.model.graph.input), ("output", self.model.graph.output)):
            for value in values:
                shape = tuple(d.dim_value or -1 for d in value.type.tensor_type.shape.dim)
                yield value.name, mode, types[value.type.tensor_type.elem_type], shape

    def __call__(self, feeds):
        return dict(zip(self.evaluator.output_names, self.evaluator.run(None, feeds), strict=True))


@cache
def graph(path: str):
    """What runs the graph at `path`; loaded once, since tests make many engines of it."""
    return OracleGraph(path) if path.endswith("decoder_plugin.onnx") else OrtGraph(path)


class FakeTensorRT:
    """The module tensorrt. evaluate(path): what runs a graph. alter(engine): called with each engine that is loaded."""

    __name__ = "tensorrt"
    __version__ = "10.13.0"
    TensorIOMode = SimpleNamespace(INPUT="input", OUTPUT="output")
    ExecutionContextAllocationStrategy = SimpleNamespace(USER_MANAGED=2)

    class ILogger:
        Severity = SimpleNamespace(ERROR=1, INTERNAL_ERROR=0, WARNING=2)

    def __init__(self, cuda: FakeCuda, evaluate=graph, alter=lambda engine: None):
        self.cuda, self.evaluate, self.alter = cuda, evaluate, alter
        self.engines: list[Engine] = []
        self.libraries: list[str] = []

    def Runtime(self, logger):
        return SimpleNamespace(deserialize_cuda_engine=lambda data: self._load(logger, data))

    def get_plugin_registry(self):
        return SimpleNamespace(load_library=lambda path: self.libraries.append(path) or "handle")

    def _load(self, logger, data):
        try:
            spec = json.loads(data)
        except ValueError:
            logger.log(self.ILogger.Severity.ERROR, "Serialization assertion magicTag failed")
            return None
        self.engines.append(Engine(self.cuda, spec, self.evaluate))
        self.alter(self.engines[-1])
        return self.engines[-1]


def write_engine(path: Path, graph: Path, profiles: dict) -> None:
    """An engine file for the fake."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"graph": str(graph), "profiles": profiles}))
