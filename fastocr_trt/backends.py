"""What an engine directory holds for a compiled backend: the manifest's `backends` entries, and what fits them.

Engines lie in `tensorrt/` or `tensorrt_rtx/` of the directory. With the plugin there are `vision` and `decoder` (the
profiles `prefill` and `decode` of one engine, so one copy of the weights); without it `vision`, `dense` and `fast`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from .errors import EngineError
from .records import record

BackendName = Literal["tensorrt", "tensorrt-rtx"]
BACKENDS: tuple[BackendName, ...] = ("tensorrt", "tensorrt-rtx")
FOLDERS: dict[BackendName, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
PLUGIN_VERSION = "1"
PLUGIN_NAMESPACE = "fastocr"


@dataclass(frozen=True)
class TensorRecord:
    """One input or output of an engine: mode `input` or `output`, dtype as numpy names it (`bfloat16` beside), and
    shape with -1 where a profile decides."""

    name: str
    mode: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class EngineFile:
    """One serialized engine: file relative to the engine directory, bytes, SHA-256 in hex, names of its optimisation
    profiles in order, and its tensors."""

    file: str
    size: int
    sha256: str
    profiles: tuple[str, ...]
    tensors: tuple[TensorRecord, ...]


@dataclass(frozen=True)
class BackendRecord:
    """The engines of one backend: the library's version that built them, compute capabilities as `8.9`, and the
    version of the fastocr plugin they need (None where they need none). engines: by name, as above."""

    version: str
    compute_capabilities: tuple[str, ...]
    plugin_version: str | None
    engines: dict[str, EngineFile]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, name: str, data: Any) -> BackendRecord:
        """Raises EngineError where `data`, the manifest's `backends[name]`, is not such a record."""
        try:
            return record(cls, data, f"backends.{name}", -1)
        except ValueError as error:
            raise EngineError(
                f"the manifest's engines of {name} do not fit: {error}; build them again with "
                f"`fastocr-export ENGINE_DIR --backend {name}`"
            ) from None
