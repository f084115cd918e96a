"""Give TensorRT-RTX its unversioned library name, without which its ONNX parser cannot reach plugins.

The parser opens `libtensorrt_rtx.so` to find the plugin registry; the wheel ships `libtensorrt_rtx.so.1` alone, and
the process ends where the name is not found. A shared object of that name, which holds nothing and depends on the
library that is loaded already, is enough: the loader then knows the name. It is written here, byte by byte, since a
compiler may be absent, and lives in memory.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import struct
import sys
from pathlib import Path

from ..errors import EngineError

NAME = "libtensorrt_rtx.so"
MACHINES = {"x86_64": 62, "aarch64": 183}  # e_machine


@functools.cache
def provide_library_name() -> None:
    """Make the name known to this process, once; tensorrt_rtx must be imported. EngineError where that cannot be."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(NAME, mode=ctypes.RTLD_GLOBAL)  # an installation from a package of the system has it
        return
    except OSError:
        pass
    loaded = versioned_name(Path("/proc/self/maps").read_text())
    machine = MACHINES.get(platform.machine())
    if loaded is None or machine is None:
        raise EngineError(
            f"the name {NAME} cannot be provided here ({platform.machine()}, loaded: {loaded}); put a link of that "
            "name to the library into a folder on LD_LIBRARY_PATH, or build without the plugin: --plugin none"
        )
    file = os.memfd_create(NAME)
    try:
        os.write(file, shared_object(NAME, loaded, machine))
        ctypes.CDLL(f"/proc/self/fd/{file}", mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise EngineError(
            f"the name {NAME} cannot be provided ({error}); put a link of that name to {loaded} into a folder on "
            "LD_LIBRARY_PATH, or build without the plugin: --plugin none"
        ) from None
    finally:
        os.close(file)


def versioned_name(maps: str) -> str | None:
    """The versioned name of the library among a process's mapped files, None where it is not loaded."""
    found = re.search(rf"/({re.escape(NAME)}\.\d+)", maps)
    return found[1] if found else None


def shared_object(name: str, needed: str, machine: int) -> bytes:
    """A 64-bit little-endian ELF shared object called `name` that holds nothing and depends on `needed`."""
    strings = b"\0" + name.encode() + b"\0" + needed.encode() + b"\0"
    headers = 64 + 3 * 56
    symbols, hashes = headers, headers + 24  # one empty symbol; a hash table of one bucket without entries
    dynamic = hashes + 16
    entries = [
        (1, 2 + len(name)),  # DT_NEEDED
        (14, 1),  # DT_SONAME
        (4, hashes),
        (6, symbols),
        (11, 24),  # bytes of a symbol
        (5, dynamic + 8 * 16),  # DT_STRTAB
        (10, len(strings)),
        (0, 0),
    ]
    size = dynamic + 16 * len(entries) + len(strings)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<16sHHIQQQIHHHHHH", ident, 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    read_write = 6
    segments = [
        (1, read_write, 0, size, 0x1000),  # PT_LOAD: the whole file; the loader writes addresses into the table
        (2, read_write, dynamic, 16 * len(entries), 8),  # PT_DYNAMIC
        (0x6474E551, read_write, 0, 0, 16),  # PT_GNU_STACK: without it a loader asks for an executable stack
    ]
    packed = [struct.pack("<IIQQQQQQ", kind, flags, at, at, at, n, n, align) for kind, flags, at, n, align in segments]
    table = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    return header + b"".join(packed) + bytes(24) + struct.pack("<4I", 1, 1, 0, 0) + table + strings
