"""nvcc compiles every kernel for every architecture, without spills and within a number of registers."""

import hashlib
import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[1] / "plugins" / "kernels"
CACHE = KERNELS.parents[1] / "build" / "kernel_build"
SOURCES = ("attention.cu", "attention_float32.cu", "attention_float16.cu", "attention_bfloat16.cu")
ARCHITECTURES = ("80", "86", "87", "89", "90", "100", "110", "120")

# Registers of a thread. A multiprocessor has 65,536: 128 leave room for 4 blocks of 128 threads and 168 for 3, which is
# what decode_attention asks for (128 in 16 bits but for sm_86, 89 and 120); 255 is the most a thread can have.
LIMITS = {
    "append_rows": 40,
    "decode_attention": 168,
    "dense_prefill_fma": 255,
    "dense_prefill_mma": 255,
    "merge_splits": 48,
    "select_topk": 64,
    "visual_mass": 40,
}


@pytest.fixture(scope="module")
def kernels():
    """(kernel, architecture, registers, spilled bytes) of all kernels; kept until a source or nvcc changes."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed, which compiles the kernels for GPUs")
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    known = subprocess.run([nvcc, "--list-gpu-arch"], capture_output=True, text=True, check=True).stdout.split()
    architectures = [a for a in ARCHITECTURES if f"compute_{a}" in known]
    state = hashlib.sha256(version.encode())
    for path in sorted([*KERNELS.glob("*.cu*"), *KERNELS.glob("*.h")]):
        state.update(path.read_bytes())
    kept = CACHE / f"{state.hexdigest()[:16]}.json"
    if not kept.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(2) as pool:
            logs = list(pool.map(lambda source: compile_source(nvcc, source, architectures), reversed(SOURCES)))
        written = kept.with_suffix(".part")
        written.write_text(json.dumps([row for log in logs for row in read_log(log)]))
        written.replace(kept)
    return json.loads(kept.read_text()), architectures


def compile_source(nvcc, source, architectures):
    command = [nvcc, "-std=c++17", "-O3", "-Xptxas", "-v", "-c", str(KERNELS / source), "-o", f"{CACHE / source}.o"]
    for architecture in architectures:
        command += ["-gencode", f"arch=compute_{architecture},code=sm_{architecture}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stderr


def read_log(log):
    entry = re.compile(
        r"Compiling entry function '(\S+)' for 'sm_(\d+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers",
        re.DOTALL,
    )
    for name, architecture, stores, loads, registers in entry.findall(log):
        kernel = next((kernel for kernel in LIMITS if kernel in name), name)
        yield kernel, architecture, int(registers), int(stores) + int(loads)


def test_every_kernel_is_there_for_every_architecture(kernels):
    rows, architectures = kernels
    assert {kernel for kernel, *_ in rows} == set(LIMITS)
    counts = {a: sum(row[1] == a for row in rows) for a in architectures}
    assert len(set(counts.values())) == 1 and min(counts.values()) >= 20, counts


def test_no_kernel_spills(kernels):
    assert [row for row in kernels[0] if row[3]] == []


@pytest.mark.parametrize("kernel", sorted(LIMITS))
def test_registers_stay_below_the_limit(kernels, kernel):
    used = {row[2] for row in kernels[0] if row[0] == kernel}
    assert used and max(used) <= LIMITS[kernel], used
