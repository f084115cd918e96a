"""Whether a run fits the memory, estimated before anything is loaded."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import FastOCRError
from ..machine import memory
from ..manifest import DecoderShape, Manifest
from ..runtime.onnxruntime_session import SHARED_ABOVE
from ..shapes import ITEM_SIZE, PATCH, ModelShape
from .matrix import Case

EXPORT_OVERHEAD = 1.6  # peak memory of an export over its engine's size; benchmarks/export_memory.py saw 1.44
PREFILL_CHUNK = 256  # of engines that are made from a shape


@dataclass(frozen=True)
class EngineSize:
    """An engine, or one that is still to be made, as far as its memory goes. weights_bytes: of its weights file.
    patch_numbers: of the patches of one visual token."""

    decoder: DecoderShape
    dtype: str
    quantised: bool
    weights_bytes: int
    prefill_chunk: int
    patch_numbers: int

    @classmethod
    def of(cls, manifest: Manifest) -> EngineSize:
        vision = manifest.vision
        patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        return cls(
            manifest.decoder,
            manifest.dtype,
            manifest.weights is not None,
            manifest.files["weights"].size,
            manifest.capacities.prefill_chunk,
            vision.spatial_merge_size**2 * patch,
        )

    @classmethod
    def of_shape(cls, shape: ModelShape, dtype: str, weights: str | None) -> EngineSize:
        size = shape.engine_bytes(dtype, weights)
        return cls(shape.decoder, dtype, weights is not None, size, PREFILL_CHUNK, 2 * 2 * PATCH)


def run_bytes(engine: EngineSize, cases: Sequence[Case], steps: int, prompt: bool) -> int:
    """About what a run on the CPU takes: weights, a copy a graph where they are repacked, for each number of threads;
    the caches of all cases, which are there together; and what prefill works in. prompt: whether it is measured."""
    mine = [case for case in cases if case.backend == "onnxruntime"]
    if not mine:
        return 0
    shape, size = engine.decoder, ITEM_SIZE[engine.dtype]
    weights = engine.weights_bytes
    if engine.quantised or weights <= SHARED_ABOVE:
        weights *= 2 * len({case.threads for case in mine})
    row = 2 * shape.num_layers * shape.num_key_value_heads * shape.head_dim * size
    chunk = engine.prefill_chunk
    prompts = {case.prompt for case in mine}
    caches = sum(p.batch * (p.visual_tokens + p.text_tokens + steps + 2 * chunk) * row for p in prompts)
    scratch = 0
    if prompt:
        for p in prompts:
            scores = 3 * p.batch * shape.num_attention_heads * chunk * (p.visual_tokens + p.text_tokens) * size
            scratch = max(scratch, scores)
            caches += p.visual_tokens * engine.patch_numbers * 4
    return weights + caches + scratch


def check_run(engine: EngineSize, cases: Sequence[Case], steps: int, prompt: bool) -> None:
    """FastOCRError where a run takes more memory than is available."""
    _check(
        run_bytes(engine, cases, steps, prompt),
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
