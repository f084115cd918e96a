"""A stand-in for the module tensorrt: the calls that building makes, remembered; networks come from the ONNX graph."""

from __future__ import annotations

from enum import Enum
from types import ModuleType, SimpleNamespace

import onnx
from onnx import TensorProto

DTYPES = {TensorProto.FLOAT: "FLOAT", TensorProto.FLOAT16: "HALF", TensorProto.INT64: "INT64"}


def make(
    version: str = "10.13.3.9", serialized: bytes | None = b"engine", parses: bool = True, plugins: int | None = None
):
    """The module. serialized: what a build gives; plugins: plugin layers of a decoder, None for one per op of ours."""
    trt = ModuleType("tensorrt")
    trt.__version__ = version
    trt.calls = SimpleNamespace(profiles=[], pools=[], caches=[], flags=[], models=[])
    trt.warnings = []
    severity = Enum("Severity", "INTERNAL_ERROR ERROR WARNING INFO VERBOSE")

    class ILogger:
        Severity = severity

    class IProgressMonitor:
        pass

    class Cache:
        def __init__(self, content):
            self.content = content

        def serialize(self):
            return self.content + b"+"

    class Config:
        progress_monitor = None

        def set_memory_pool_limit(self, pool, size):
            trt.calls.pools.append((pool, size))

        def create_timing_cache(self, content):
            trt.calls.caches.append(content)
            return None if content == b"foreign" else Cache(content)

        def set_timing_cache(self, cache, ignore_mismatch):
            self.cache = cache
            return True

        def get_timing_cache(self):
            return self.cache

        def add_optimization_profile(self, profile):
            trt.calls.profiles.append(profile.shapes)
            return len(trt.calls.profiles) - 1

    class Profile:
        def __init__(self):
            self.shapes = {}

        def set_shape(self, name, *shapes):
            self.shapes[name] = shapes

    class Network:
        def fill(self, model):
            put = {"inputs": model.graph.input, "outputs": model.graph.output}
            self.tensors = {kind: [_tensor(value) for value in values] for kind, values in put.items()}
            ours = sum(node.domain == "fastocr" for node in model.graph.node) if not model.functions else 0
            count = ours if plugins is None else min(ours, plugins)
            self.layers = [SimpleNamespace(type="plugin")] * count + [SimpleNamespace(type="other")]
            self.num_layers, self.num_inputs, self.num_outputs = len(self.layers), *map(len, self.tensors.values())

        def get_layer(self, i):
            return self.layers[i]

        def get_input(self, i):
            return self.tensors["inputs"][i]

        def get_output(self, i):
            return self.tensors["outputs"][i]

    class Builder:
        def __init__(self, logger):
            self.logger = logger

        def create_network(self, flags):
            trt.calls.flags.append(flags)
            return Network()

        def create_builder_config(self):
            return Config()

        def create_optimization_profile(self):
            return Profile()

        def build_serialized_network(self, network, config):
            for text in trt.warnings:
                self.logger.log(severity.WARNING, text)
            monitor = config.progress_monitor
            monitor.phase_start("Building", None, 2)
            steps = [monitor.step_complete("Building", i) for i in range(2)]
            monitor.phase_finish("Building")
            if serialized is None:
                self.logger.log(severity.ERROR, "no kernel fits")
            return serialized if all(steps) else None

    class OnnxParser:
        num_errors = 1

        def __init__(self, network, logger):
            self.network = network

        def parse(self, content, path):
            trt.calls.models.append(onnx.load_model_from_string(content))
            self.network.fill(trt.calls.models[-1])
            return parses

        def get_error(self, i):
            return SimpleNamespace(desc=lambda: "what is this node")

    trt.ILogger, trt.IProgressMonitor, trt.Builder, trt.OnnxParser = ILogger, IProgressMonitor, Builder, OnnxParser
    trt.NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=1)
    trt.LayerType = SimpleNamespace(PLUGIN_V3="plugin", ATTENTION_INPUT="attention")
    trt.MemoryPoolType = SimpleNamespace(WORKSPACE="workspace")
    return trt


def _tensor(value: onnx.ValueInfoProto):
    kind = value.type.tensor_type
    shape = [dim.dim_value or -1 for dim in kind.shape.dim]
    return SimpleNamespace(name=value.name, shape=shape, dtype=SimpleNamespace(name=DTYPES[kind.elem_type]))
