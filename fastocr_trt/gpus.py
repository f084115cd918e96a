"""The NVIDIA GPUs of this machine, seen without loading CUDA into the process."""

from __future__ import annotations

import shutil
import subprocess


def gpu_names() -> str | None:
    """Names, drivers and memories, as one line; None where there is no GPU or no nvidia-smi."""
    return "; ".join(_query("name,driver_version,memory.total")) or None


def compute_capabilities() -> tuple[str, ...]:
    """Of each kind of GPU, as `8.9`, ascending; empty where none is seen."""
    found = {line for line in _query("compute_cap") if all(part.isdigit() for part in line.split("."))}
    return tuple(sorted(found, key=lambda text: [int(part) for part in text.split(".")]))


def _query(fields: str) -> list[str]:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
