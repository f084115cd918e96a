"""What this machine and its packages say of themselves."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def memory(field: str) -> int:
    """Bytes of a field of /proc/meminfo, MemTotal or MemAvailable; 0 where it is not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


def processor() -> str:
    """The processor's name for people."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def package_version(package: str) -> str:
    """The installed version, `absent` where there is none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
