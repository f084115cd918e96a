"""A stand-in for tensorrt_rtx: the library of fake_gpu, whose contexts take their kernels from a runtime cache."""

from __future__ import annotations

from types import SimpleNamespace

from fake_gpu import FakeTensorRT


class RuntimeCache:
    """Kernels as one byte string. It takes what begins with the environment that made it."""

    _environment = b"GPU 1;"

    def __init__(self):
        self._kernels = b""

    def deserialize(self, blob):
        if not blob.startswith(self._environment):
            return False
        self._kernels = blob.removeprefix(self._environment)
        return True

    def serialize(self):
        return memoryview(self._environment + self._kernels)  # a buffer, as IHostMemory is


class RuntimeConfig:
    dynamic_shapes_kernel_specialization_strategy = "lazy"
    _cache = None

    def set_execution_context_allocation_strategy(self, strategy):
        self._allocation = strategy

    def create_runtime_cache(self):
        return RuntimeCache()

    def set_runtime_cache(self, cache):
        self._cache = cache
        return True


class FakeRTX(FakeTensorRT):
    """Each context compiles one kernel, unless the cache has one. configs: those of all contexts; compiled: how many
    kernels were."""

    __name__ = "tensorrt_rtx"
    IRuntimeCache = RuntimeCache
    DynamicShapesKernelSpecializationStrategy = SimpleNamespace(EAGER="eager")

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.configs: list[RuntimeConfig] = []
        self.compiled = 0

    def _load(self, logger, data):
        engine = super()._load(logger, data)
        make = engine.create_execution_context

        def create(config):
            assert config._allocation == self.ExecutionContextAllocationStrategy.USER_MANAGED
            kernel = b"kernel %d;" % len(self.configs)
            self.configs.append(config)
            if config._cache is None or kernel not in config._cache._kernels:
                self.compiled += 1
                if config._cache is not None:
                    config._cache._kernels += kernel
            return make(config)

        engine.create_runtime_config, engine.create_execution_context = RuntimeConfig, create
        return engine
