"""Whether a run fits the memory, estimated before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..errors import FastOCRError
from ..machine import memory
from ..manifest import Manifest
from ..runtime.onnxruntime_session import SHARED_ABOVE
from ..shapes import ITEM_SIZE, ModelShape
from .matrix import Case

EXPORT_OVERHEAD = 1.6  # peak memory of an export over its engine's size; benchmarks/export_memory.py saw 1.44


def run_bytes(manifest: Manifest, cases: Sequence[Case], steps: int, prompt: bool) -> int:
    """About what a run on the CPU takes: weights, a copy a graph where they are repacked, for each number of threads;
    the caches of all cases, which are there together; and what prefill works in. prompt: whether it is measured."""
    mine = [case for case in cases if case.backend == "onnxruntime"]
    if not mine:
        return 0
    shape, size = manifest.decoder, ITEM_SIZE[manifest.dtype]
    weights = manifest.files["weights"].size
    if manifest.weights is not None or weights <= SHARED_ABOVE:
        weights *= 2 * len({case.threads for case in mine})
    row = 2 * shape.num_layers * shape.num_key_value_heads * shape.head_dim * size
    chunk = manifest.capacities.prefill_chunk
    prompts = {case.prompt for case in mine}
    caches = sum(p.batch * (p.visual_tokens + p.text_tokens + steps + 2 * chunk) * row for p in prompts)
    scratch = 0
    if prompt:
        patches = manifest.vision.spatial_merge_size**2
        width = manifest.vision.in_channels * manifest.vision.temporal_patch_size * manifest.vision.patch_size**2
        for p in prompts:
            scores = 3 * p.batch * shape.num_attention_heads * chunk * (p.visual_tokens + p.text_tokens) * size
            scratch = max(scratch, scores)
            caches += p.visual_tokens * patches * width * 4
    return weights + caches + scratch


def check_run(manifest: Manifest, cases: Sequence[Case], steps: int, prompt: bool) -> None:
    """FastOCRError where a run takes more memory than is available."""
    _check(
        run_bytes(manifest, cases, steps, prompt),
        "this run",
        "measure fewer or smaller sizes, batches and numbers of threads at once",
    )


def check_export(shape: ModelShape, dtype: str, weights: str | None, folder: Path) -> None:
    """FastOCRError where an engine of random weights cannot be made: memory, or room in `folder`."""
    engine = shape.engine_bytes(dtype, weights)
    advice = "give fewer --layers, or --weights int4"
    _check(int(EXPORT_OVERHEAD * engine), "making this engine", advice)
    checkpoint, free = 2 * sum(shape.parameters()), shutil.disk_usage(folder).free
    if checkpoint + engine > free:
        raise FastOCRError(
            f"making this engine takes {_gib(checkpoint + engine)} in {folder}, which has {_gib(free)} free; {advice}, "
            "or set TMPDIR to a larger place"
        )


def _check(needed: int, what: str, advice: str) -> None:
    available = memory("MemAvailable")
    if available and needed > available:
        raise FastOCRError(f"{what} takes about {_gib(needed)} of memory and {_gib(available)} is available; {advice}")


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f} GiB"
