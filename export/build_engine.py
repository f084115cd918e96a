"""Build one engine: parse, check that nothing was dropped, build, and say what it takes and gives."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from ..backends import EngineFile, TensorRecord
from ..errors import ExportError
from ..hashing import sha256
from . import build_graph
from .build_library import DTYPES, BuilderLibrary, because, capability_member, network_flags
from .build_progress import progress_monitor

_UNUSED = re.compile(r"Unused (?:Input|Output): (\S+)")


@dataclass(frozen=True)
class EnginePlan:
    """One engine to build: its name, the graph without weights, the file whose folder holds them, and its profiles."""

    name: str
    model: onnx.ModelProto
    path: Path
    profiles: Mapping[str, Mapping[str, build_graph.Shapes]]


@dataclass(frozen=True)
class Settings:
    """What holds for all engines of a backend. compute_capabilities: as `8.9`. builder_memory: bytes of device memory
    that a kernel may use as workspace, None for the library's default. timing_cache: its content, where one is used."""

    compute_capabilities: tuple[str, ...]
    builder_memory: int | None = None
    timing_cache: bytes | None = None


@dataclass(frozen=True)
class Built:
    """The engine's record, the number of plugin layers in its network, the timing cache as it is now, and seconds."""

    file: EngineFile
    plugin_layers: int
    timing_cache: bytes | None
    parse_seconds: float
    build_seconds: float


def build_engine(
    library: BuilderLibrary,
    plan: EnginePlan,
    settings: Settings,
    output: Path,
    progress: Callable[[float], None] = lambda share: None,
) -> Built:
    """Build `plan` and write it to `output`, a new file in a folder named after the backend.

    ExportError with what the library said where it does not parse or build, or where it drops an input or output.
    Ctrl-C ends the build at its next step.
    """
    trt, logger = library.trt, library.logger
    logger.clear()
    builder = trt.Builder(logger)
    network = builder.create_network(network_flags(trt))
    parser = trt.OnnxParser(network, logger)
    started = time.perf_counter()
    if not parser.parse(plan.model.SerializeToString(), str(plan.path)):
        told = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise ExportError(f"{library.name} {library.version} cannot read {plan.path}{because(told or logger.errors)}")
    parsed = time.perf_counter()
    _check_tensors(plan, network)
    _allow_decomposition(trt, network)
    config = builder.create_builder_config()
    _configure(library, config, settings)
    for profile in plan.profiles.values():
        made = builder.create_optimization_profile()
        for name, shapes in profile.items():
            made.set_shape(name, *shapes)
        if config.add_optimization_profile(made) < 0:
            raise ExportError(f"{library.name} refuses a profile of {plan.name}{because(logger.errors)}")
    begun = time.perf_counter()
    serialized = _build(library, plan, builder, network, config, progress)
    build_seconds = time.perf_counter() - begun
    check_nothing_dropped(plan, logger.warnings)
    with output.open("wb") as file:
        file.write(memoryview(serialized))
    record = EngineFile(
        file=f"{output.parent.name}/{output.name}",
        size=output.stat().st_size,
        sha256=sha256(output),
        profiles=tuple(plan.profiles),
        tensors=tuple(_tensors(network)),
    )
    cache = config.get_timing_cache() if settings.timing_cache is not None else None
    content = None if cache is None else bytes(memoryview(cache.serialize()))
    return Built(record, plugin_layers(trt, network), content, parsed - started, build_seconds)


def plugin_layers(trt: Any, network: Any) -> int:
    """How many layers of a network are plugins."""
    kinds = [network.get_layer(i).type for i in range(network.num_layers)]
    return sum(kind == trt.LayerType.PLUGIN_V3 for kind in kinds)


def check_nothing_dropped(plan: EnginePlan, warnings: Sequence[str]) -> None:
    """ExportError where the library says that it does without an input or output that the graph uses."""
    named = {name for text in warnings for name in _UNUSED.findall(text)}
    dropped = sorted(named - build_graph.unused_inputs(plan.model))
    if dropped:
        raise ExportError(
            f"{plan.name}: the library drops {', '.join(dropped)}, which the graph uses: the engine would compute "
            "something else; use another version of the library, or the plugin"
        )


def _check_tensors(plan: EnginePlan, network: Any) -> None:
    graph = plan.model.graph
    for kind, wanted, found in (
        ("inputs", graph.input, [network.get_input(i).name for i in range(network.num_inputs)]),
        ("outputs", graph.output, [network.get_output(i).name for i in range(network.num_outputs)]),
    ):
        missing = sorted({value.name for value in wanted} - set(found))
        if missing:
            raise ExportError(f"{plan.name}: the parser drops the {kind} {', '.join(missing)}")


def _allow_decomposition(trt: Any, network: Any) -> None:
    """Attention without a fused kernel for its shape and type (float32 has none) is refused unless it may be split."""
    if not hasattr(trt, "IAttentionInputLayer"):
        return
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if layer.type == trt.LayerType.ATTENTION_INPUT:
            layer.__class__ = trt.IAttentionInputLayer  # how the Python API casts a layer to its kind
            layer.attention.decomposable = True


def _configure(library: BuilderLibrary, config: Any, settings: Settings) -> None:
    trt = library.trt
    if library.name == "tensorrt-rtx":
        config.num_compute_capabilities = len(settings.compute_capabilities)
        for i, capability in enumerate(settings.compute_capabilities):
            config.set_compute_capability(capability_member(trt, capability), i)
    own_memory = getattr(getattr(trt, "BuilderFlag", None), "REQUIRE_USER_ALLOCATION", None)
    if own_memory is not None:
        config.set_flag(own_memory)  # an engine that allocates for itself cannot be captured in a CUDA graph
    if settings.builder_memory is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.builder_memory)
    if settings.timing_cache is not None:
        cache = config.create_timing_cache(settings.timing_cache)
        if cache is None or not config.set_timing_cache(cache, False):  # of another version or GPU: begin anew
            config.set_timing_cache(config.create_timing_cache(b""), False)


def _build(
    library: BuilderLibrary, plan: EnginePlan, builder: Any, network: Any, config: Any, progress: Callable
) -> Any:
    """The serialized engine. The library works in another thread, so that Ctrl-C reaches this one."""
    stop = threading.Event()
    monitor = progress_monitor(library.trt, progress, stop)
    config.progress_monitor = monitor
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(builder.build_serialized_network, network, config)
        try:
            while not wait_for([future], timeout=0.5).done:
                pass
        except BaseException:
            stop.set()
            raise
    if monitor.error is not None:
        raise monitor.error
    serialized = future.result()
    if serialized is None:
        raise ExportError(
            f"{library.name} {library.version} cannot build {plan.name}{because(library.logger.errors)}; more "
            "--builder-memory or smaller limits may help"
        )
    return serialized


def _tensors(network: Any) -> list[TensorRecord]:
    tensors = [("input", network.get_input(i)) for i in range(network.num_inputs)]
    tensors += [("output", network.get_output(i)) for i in range(network.num_outputs)]
    return [
        TensorRecord(tensor.name, mode, DTYPES.get(tensor.dtype.name, tensor.dtype.name.lower()), tuple(tensor.shape))
        for mode, tensor in tensors
    ]
