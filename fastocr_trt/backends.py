"""What an engine directory holds for a compiled backend: the manifest's `backends` entries, and what fits them.

Engines lie in `tensorrt/` or `tensorrt_rtx/` of the directory. With the plugin there are `vision` and `decoder` (the
profiles `prefill` and `decode` of one engine, so one copy of the weights); without it `vision`, `dense` and `fast`.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from .counts import plural
from .errors import EngineError
from .hashing import sha256
from .plugin_library import BUILD as BUILD_PLUGIN
from .records import record

BackendName = Literal["tensorrt", "tensorrt-rtx"]
BACKENDS: tuple[BackendName, ...] = ("tensorrt", "tensorrt-rtx")
FOLDERS: dict[BackendName, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
MODULES: dict[BackendName, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
PACKAGES: dict[BackendName, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt-rtx-cu13"}  # to install
OTHER_PACKAGES: dict[BackendName, tuple[str, ...]] = {
    "tensorrt": ("tensorrt-cu13", "tensorrt-cu12", "tensorrt-cu11"),
    "tensorrt-rtx": ("tensorrt-rtx-cu12", "tensorrt-rtx"),
}
"""Under which the same module may have been installed, for another CUDA."""
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

    def check_files(self, name: str, directory: Path, hash_up_to: int | None = None) -> None:
        """Raise EngineError, with the command that rebuilds, where an engine file is missing or changed.

        hash_up_to: files of more bytes than this are compared by size alone; None hashes all.
        """
        rebuild = f"build the engines again with `{self.rebuild_command(directory, name)}`"
        for file in self.engines.values():
            path = directory / file.file
            if not path.is_file():
                raise EngineError(f"{directory} lacks {file.file}, an engine of {name}; {rebuild}")
            size = path.stat().st_size
            if size != file.size:
                raise EngineError(
                    f"{path} is {plural(size, 'byte')} and the manifest says {file.size:,}: half-written or "
                    f"changed; {rebuild}"
                )
            if (hash_up_to is None or size <= hash_up_to) and sha256(path) != file.sha256:
                raise EngineError(f"{path} does not match the hash in the manifest: it was changed; {rebuild}")

    def rebuild_command(self, directory: Path | str, name: str) -> str:
        """The command that builds these engines again: in the same form, for the same GPUs.

        TensorRT builds for the GPU that is here.
        """
        wanted = f" --compute-capability {','.join(self.compute_capabilities)}" if name != "tensorrt" else ""
        return rebuild_command(directory, name) + wanted + (" --plugin none" if self.plugin_version is None else "")

    @classmethod
    def from_dict(cls, name: str, data: Any) -> BackendRecord:
        """Raises EngineError where `data`, the manifest's `backends[name]`, is not such a record."""
        try:
            made = record(cls, data, f"backends.{name}", -1)
            _check_values(made)
            return made
        except ValueError as error:
            raise EngineError(
                f"the manifest's engines of {name} do not fit: {error}; build them again with "
                f"`fastocr-export ENGINE_DIR --backend {name}`"
            ) from None


@dataclass(frozen=True)
class Installed:
    """What a machine has for a backend: the library's version (None: absent), the compute capabilities of its GPUs as
    `8.9` (empty: none is seen), and the version of the plugin library (None: absent or not loadable)."""

    version: str | None
    compute_capabilities: tuple[str, ...]
    plugin_version: str | None


def mismatches(record: BackendRecord, name: BackendName, installed: Installed, directory: Path | str) -> list[str]:
    """Why the engines of `directory` do not run here: a sentence each, with what to do; none where nothing is wrong.

    A GPU that is not seen is not a mismatch: it cannot be told.
    """
    found = []
    if installed.version is None:
        found.append(f"{name} is not installed; pip install {PACKAGES[name]}=={record.version}")
    elif not same_release(name, record.version, installed.version):
        needed = "the same version" if name == "tensorrt" else "the same major and minor version"
        found.append(
            f"the engines were built with {name} {record.version} and {installed.version} is installed; they need "
            f"{needed}: build them again with `{record.rebuild_command(directory, name)}`"
        )
    foreign = [sm for sm in installed.compute_capabilities if sm not in record.compute_capabilities]
    if foreign:
        both = tuple(dict.fromkeys((*record.compute_capabilities, *foreign)))
        command = replace(record, compute_capabilities=both).rebuild_command(directory, name)
        found.append(
            f"the engines are for compute capability {', '.join(record.compute_capabilities)} and a GPU here has "
            f"{', '.join(foreign)}; build them again with `{command}`"
        )
    if record.plugin_version is not None and installed.plugin_version is None:
        found.append(
            f"the engines need version {record.plugin_version} of the fastocr plugin and no library with it is here; "
            f"{BUILD_PLUGIN}, or build the engines without it: "
            f"`{replace(record, plugin_version=None).rebuild_command(directory, name)}`"
        )
    elif record.plugin_version not in (None, installed.plugin_version):
        found.append(
            f"the engines need version {record.plugin_version} of the fastocr plugin and the library here has version "
            f"{installed.plugin_version}; build them again with `{record.rebuild_command(directory, name)}`"
        )
    return found


def same_release(name: BackendName, built: str, here: str) -> bool:
    """Whether a library of version `here` runs engines of version `built`: TensorRT's must be the same version,
    TensorRT-RTX's the same major and minor."""
    return built == here if name == "tensorrt" else built.split(".")[:2] == here.split(".")[:2]


def installed_package(name: BackendName) -> str:
    """What pip calls the package of `name` that is installed here; where none is, the one to install."""
    for package in (PACKAGES[name], *OTHER_PACKAGES[name]):
        try:
            version(package)
        except PackageNotFoundError:
            continue
        return package
    return PACKAGES[name]


def rebuild_command(directory: Path | str, name: str) -> str:
    """The command that builds a backend's engines of an engine directory, for this machine's GPU."""
    return f"fastocr-export {shlex.quote(str(directory))} --backend {name}"


def _check_values(made: BackendRecord) -> None:
    """ValueError for an engine file outside the backends' folders, and for what is no version in a command to paste."""
    for file in made.engines.values():
        parts = PurePosixPath(file.file).parts
        if len(parts) != 2 or parts[0] not in FOLDERS.values() or not re.fullmatch(r"\w[\w.-]{0,99}", parts[1]):
            raise ValueError(f"it names the file {file.file[:200]!r}, outside {' and '.join(FOLDERS.values())}")
    if not re.fullmatch(r"[0-9][\w.+-]{0,49}", made.version):
        raise ValueError(f"version is {made.version[:60]!r}, not a version")
    for capability in made.compute_capabilities:
        if not re.fullmatch(r"[0-9]{1,2}[.][0-9]", capability):
            raise ValueError(f"compute capability {capability[:60]!r} is none, such as 8.9")
