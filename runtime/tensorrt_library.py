"""TensorRT and TensorRT-RTX as this project uses them: load an engine, make an execution context, say what failed."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ..backends import MODULES, PACKAGES, BackendName, BackendRecord, EngineFile, TensorRecord, installed_package
from ..counts import plural
from ..errors import EngineError, MissingDependencyError
from ..plugin_library import load_plugin
from .kernel_cache import KernelCache, kernel_cache_file
from .tensorrt_plan import Role

DTYPE_NAMES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT64": "int64"}

log = logging.getLogger("fastocr_trt.tensorrt")


@dataclass(frozen=True)
class Library:
    """A backend's two modules: `trt` is tensorrt or tensorrt_rtx, `cudart` is cuda.bindings.runtime."""

    backend: BackendName
    trt: Any
    cudart: Any


def import_library(backend: BackendName) -> Library:
    """MissingDependencyError where a module is absent or does not load, with the command that installs it."""
    packages = f"{PACKAGES[backend]} cuda-python"
    modules = []
    for name in (MODULES[backend], "cuda.bindings.runtime"):
        try:
            modules.append(import_module(name))
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"backend {backend!r} needs the module {error.name}, which is not installed: pip install {packages}"
            ) from None
        except (ImportError, OSError) as error:
            raise MissingDependencyError(
                f"backend {backend!r} needs {name}, whose import fails ({error}): "
                f"pip install --force-reinstall {installed_package(backend)} cuda-python"
            ) from None
    return Library(backend, *modules)


def compute_capability(cudart: Any) -> str:
    """Of the process's current GPU, as `8.9`; EngineError where there is none, with what CUDA says."""
    error, count = cudart.cudaGetDeviceCount()
    if int(error) != 0 or count == 0:
        _, text = cudart.cudaGetErrorString(error)
        reason = (text.decode() if isinstance(text, bytes) else str(text)) if int(error) else "it lists no device"
        raise EngineError(
            f"CUDA finds no GPU here ({reason}): use backend 'onnxruntime', or install the GPU's driver "
            "(`nvidia-smi` shows it)"
        )
    attribute = cudart.cudaDeviceAttr
    parts = []
    _, device = cudart.cudaGetDevice()
    for which in (attribute.cudaDevAttrComputeCapabilityMajor, attribute.cudaDevAttrComputeCapabilityMinor):
        error, value = cudart.cudaDeviceGetAttribute(which, device)
        if int(error) != 0:
            raise EngineError(f"CUDA does not tell the compute capability of device {device} (error {int(error)})")
        parts.append(str(value))
    return ".".join(parts)


class Engines:
    """The engines of a backend, read from their files; contexts that share one block of working memory.

    directory: the engine directory. Raises EngineError where TensorRT refuses an engine, with what it logged.
    """

    def __init__(self, library: Library, directory: Path, record: BackendRecord) -> None:
        trt = library.trt
        self._library = library
        self._log = _make_log(trt)
        self._log.because()  # what another session left there is not this one's
        if record.plugin_version is not None:
            load_plugin(trt)
        self._runtime = trt.Runtime(self._log)
        self._engines = {name: self._load(directory / file.file) for name, file in record.engines.items()}
        self._kernels: KernelCache | None = None
        if hasattr(trt, "IRuntimeCache"):  # TensorRT-RTX, which compiles its kernels here
            file = kernel_cache_file(record, trt.__version__, compute_capability(library.cudart))
            self._kernels = KernelCache(file)

    def _load(self, path: Path) -> Any:
        try:
            engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        except (OSError, RuntimeError) as error:
            raise EngineError(f"{path} cannot be read: {error}; {self._rebuild(path)}") from None
        if engine is None:
            raise EngineError(
                f"{self._library.trt.__name__} {self._library.trt.__version__} cannot load {path}"
                f"{self._log.because()}; {self._rebuild(path)}"
            )
        return engine

    def _rebuild(self, path: Path) -> str:
        directory = path.parent.parent
        return f"build the engines again with `fastocr-export {directory} --backend {self._library.backend}`"

    def tensors(self, engine: str) -> list[TensorRecord]:
        """What the engine itself says of its tensors."""
        loaded = self._engines[engine]
        inputs = self._library.trt.TensorIOMode.INPUT
        result = []
        for name in (loaded.get_tensor_name(i) for i in range(loaded.num_io_tensors)):
            dtype = loaded.get_tensor_dtype(name).name
            mode = "input" if loaded.get_tensor_mode(name) == inputs else "output"
            shape = tuple(loaded.get_tensor_shape(name))
            result.append(TensorRecord(name, mode, DTYPE_NAMES.get(dtype, dtype.lower()), shape))
        return result

    def check_profiles(self, engine: str, file: EngineFile) -> None:
        """EngineError where the engine has fewer profiles than the manifest names."""
        count = self._engines[engine].num_optimization_profiles
        if count < len(file.profiles):
            raise EngineError(
                f"{file.file} has {plural(count, 'optimisation profile')} and the manifest names {list(file.profiles)}"
            )

    def working_memory(self, role: Role) -> int:
        """Bytes that a context of this role needs while it runs."""
        return int(self._engines[role.engine].get_device_memory_size_for_profile_v2(role.profile))

    def largest(self, role: Role, tensor: str) -> tuple[int, ...]:
        """The largest shape of an input that the role's profile takes."""
        return tuple(self._engines[role.engine].get_tensor_profile_shape(tensor, role.profile)[2])

    def smallest(self, role: Role, tensor: str) -> tuple[int, ...]:
        return tuple(self._engines[role.engine].get_tensor_profile_shape(tensor, role.profile)[0])

    def context(self, role: Role, memory: tuple[int, int], stream: int) -> Any:
        """An execution context on the role's profile; memory: address and bytes of the block that all contexts share.

        They may share it, since they run one after the other on one stream. The stream must be waited for.
        """
        trt, engine = self._library.trt, self._engines[role.engine]
        managed = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._kernels is not None:
            config = engine.create_runtime_config()
            config.set_execution_context_allocation_strategy(managed)
            if role.name == "decode":
                # It would compile kernels for a new shape while it runs slower ones, and a graph captured meanwhile
                # would keep the slower ones for ever.
                strategies = trt.DynamicShapesKernelSpecializationStrategy
                config.dynamic_shapes_kernel_specialization_strategy = strategies.EAGER
            self._kernels.attach(config)
            context = engine.create_execution_context(config)
        else:
            context = engine.create_execution_context(managed)
        if context is None:
            raise EngineError(f"{trt.__name__} makes no execution context for {role.engine}{self._log.because()}")
        context.set_device_memory(*memory)
        if not context.set_optimization_profile_async(role.profile, stream):
            raise EngineError(f"{role.engine} refuses its profile {role.profile}{self._log.because()}")
        return context

    def because(self) -> str:
        """What TensorRT logged of its error, to end a sentence with; empty where it said nothing."""
        return self._log.because()

    def close(self) -> None:
        """Drop the engines, once their compiled kernels are kept; contexts must be gone."""
        if self._kernels is not None:
            self._kernels.save()
        self._engines.clear()
        self._runtime = None


@functools.cache
def _make_log(trt: Any) -> Any:
    """One logger a process: TensorRT keeps a pointer to the first it is given, which would outlive its session."""

    class Log(trt.ILogger):
        """TensorRT's log in Python's; the first of several errors, which names the cause, is kept for our sentence."""

        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self._error: str | None = None

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.Severity.ERROR, trt.ILogger.Severity.INTERNAL_ERROR):
                self._error = self._error or message.strip()
                log.info(message.strip())
            elif severity == trt.ILogger.Severity.WARNING:
                log.warning(message.strip())

        def because(self) -> str:
            error, self._error = self._error, None
            return f": {error[:300]}" if error else ""

    return Log()
