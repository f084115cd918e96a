"""The three ops on a GPU under PyTorch, by the Triton kernels, and their registration as the ops' CUDA implementation.

With them, calibration and evaluation of a checkpoint run on a GPU before anything is exported. `dense`, `focal` and
`gathered` write the new rows into the banks they are given; the registered ops copy the banks first, since an op of
torch.library may not change its inputs. Shapes and meaning as in docs/architecture.md; `fastocr_trt.reference` is the
definition. Nothing here waits for the device. Banks must be contiguous, since they are written where they lie;
everything else may be strided. ValueError where the tensors do not fit each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import MissingDependencyError

try:
    import triton
except ImportError:
    raise MissingDependencyError(
        "Triton is not installed: pip install 'fastocr-trt[torch]' (Linux with an NVIDIA GPU)"
    ) from None
from . import triton_kernels as kernels

BLOCK_N = 64  # key rows of a block: 16 KB of fp16 at head_dim 128, so that several are in flight on every SM
MAX_SPLITS = 64
PROGRAMS_PER_SM = 2


class Banks(NamedTuple):
    """One layer's banks, [B,KV,VCAP,D] and [B,KV,TCAP,D], contiguous; written in place."""

    visual_key: Tensor
    visual_value: Tensor
    text_key: Tensor
    text_value: Tensor


class Seen(NamedTuple):
    """visual_length, text_length [B]: where new rows go; visual_valid, text_valid [B,n]: rows a query row may see."""

    visual_length: Tensor
    text_length: Tensor
    visual_valid: Tensor
    text_valid: Tensor


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    banks: Banks,
    seen: Seen,
    visual_rows: int,
    text_rows: int,
    scale: float,
) -> Tensor:
    """DenseAttention in place: [B,H,n,D]. visual_rows, text_rows: how much of each bank is in use."""
    _check(query, key, value, banks)
    append(key, value, banks, seen)
    return _attend(query, banks, seen, visual_rows, text_rows, scale).output


def focal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    banks: Banks,
    seen: Seen,
    visual_rows: int,
    text_rows: int,
    num_fixations: Tensor,
    fixation_size: int,
    scale: float,
    per_kv_head: bool = True,
) -> tuple[Tensor, Tensor]:
    """FocalAttention in place: output [B,H,n,D] and fixation [B,KV,k] int64, rows in order, -1 (first) where unused."""
    _check(query, key, value, banks)
    append(key, value, banks, seen)
    result = _attend(query, banks, seen, visual_rows, text_rows, scale, scores=True)
    batch, kv_heads, rows = len(key), key.shape[1], query.shape[2]
    mass = torch.empty(batch, kv_heads, visual_rows, dtype=torch.float32, device=query.device)
    grid = (batch * kv_heads, triton.cdiv(visual_rows, 256))
    group = query.shape[1] // kv_heads
    kernels.visual_mass[grid](result.raw_scores, result.lse, mass, rows, visual_rows, group, 256)
    return result.output, select(mass, seen.visual_valid[:, -1], num_fixations, fixation_size, per_kv_head)


def gathered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    banks: Banks,
    seen: Seen,
    text_rows: int,
    fixation: Tensor,
    scale: float,
) -> Tensor:
    """GatheredAttention in place: [B,H,n,D]; writes the text bank alone."""
    _check(query, key, value, banks)
    for bank, new in ((banks.text_key, key), (banks.text_value, value)):
        _append(new, bank, seen.text_length)
    return _attend(query, banks, seen, fixation.shape[2], text_rows, scale, fixation=fixation).output


def append(key: Tensor, value: Tensor, banks: Banks, seen: Seen) -> None:
    """New rows [B,KV,n,D] into both banks."""
    lengths = (seen.visual_length, seen.visual_length, seen.text_length, seen.text_length)
    for bank, new, length in zip(banks, (key, value, key, value), lengths, strict=True):
        _append(new, bank, length)


def select(mass: Tensor, valid: Tensor, num_fixations: Tensor, fixation_size: int, per_kv_head: bool) -> Tensor:
    """The fixation_size heaviest rows of mass [B,KV,rows], ties to the lower row; valid, num_fixations [B].

    A stable sort is PyTorch's only selection that is exact about ties. A fixation_size beyond the rows is filled up.
    """
    kv_heads, rows = mass.shape[1:]
    if not per_kv_head:
        mass = mass.sum(1, keepdim=True).expand(-1, kv_heads, -1)
    numbers = torch.arange(rows, device=mass.device)
    ranked = torch.where(numbers < valid[:, None, None], mass, -1.0)
    order = torch.sort(ranked, dim=-1, descending=True, stable=True).indices[..., :fixation_size]
    count = torch.minimum(num_fixations, valid)[:, None, None]
    chosen = torch.where(numbers[: order.shape[-1]] < count, order, -1)
    missing = fixation_size - order.shape[-1]
    return torch.nn.functional.pad(chosen.sort(dim=-1).values, (missing, 0), value=-1)


def _check(query: Tensor, key: Tensor, value: Tensor, banks: Banks) -> None:
    """ValueError for what the kernels, which see addresses alone, would compute wrongly without a word."""
    for name, bank in zip(Banks._fields, banks, strict=True):
        if not bank.is_contiguous():
            raise ValueError(f"the bank {name} is not contiguous, so rows cannot be written where it lies")
    kinds = {(tensor.dtype, tensor.device) for tensor in (query, key, value, *banks)}
    if len(kinds) > 1:
        found = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(f"query, key, value and banks are {found}; they must share one dtype and one device")
    if query.shape[1] % key.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads are not a multiple of {key.shape[1]} KV heads")


class _Attended(NamedTuple):
    output: Tensor
    lse: Tensor
    raw_scores: Tensor | None


def _attend(query, banks, seen, visual_rows, text_rows, scale, fixation=None, scores=False) -> _Attended:
    batch, heads, rows, head_dim = query.shape
    kv_heads = banks.text_key.shape[1]
    group = heads // kv_heads
    block_m = min(64, max(16, triton.next_power_of_2(group * rows)))
    block_d = max(16, triton.next_power_of_2(head_dim))
    tiles = triton.cdiv(group * rows, block_m)
    splits = _num_splits(query.device, tiles * batch * kv_heads, max(visual_rows, text_rows))
    f32 = {"dtype": torch.float32, "device": query.device}
    partial = torch.empty(splits, batch, heads, rows, head_dim, **f32)
    partial_lse = torch.empty(splits, batch, heads, rows, **f32)
    raw = torch.empty(batch, heads, visual_rows, **f32) if scores else None
    kernels.attend[(tiles, batch * kv_heads, splits)](
        query.contiguous(),
        *banks,
        seen.visual_valid.contiguous(),
        seen.text_valid.contiguous(),
        fixation.contiguous() if fixation is not None else seen.visual_valid,
        partial,
        partial_lse,
        raw if scores else partial_lse,
        scale,
        rows,
        visual_rows,
        text_rows,
        banks.visual_key.shape[2],
        banks.text_key.shape[2],
        splits,
        group=group,
        kv_heads=kv_heads,
        head_dim=head_dim,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_D=block_d,
        GATHERED=fixation is not None,
        SCORES=scores,
        UPCAST=_interpreted() and query.dtype == torch.bfloat16,
    )
    # Contiguous: empty_like would keep the strides of a transposed query, which the kernel does not know of.
    output, lse = (
        torch.empty(query.shape, dtype=query.dtype, device=query.device),
        torch.empty(batch, heads, rows, **f32),
    )
    count = batch * heads * rows
    kernels.merge_splits[(count,)](
        partial, partial_lse, output, lse, count, splits, head_dim, triton.next_power_of_2(splits), block_d
    )
    return _Attended(output, lse, raw)


def _append(new: Tensor, bank: Tensor, length: Tensor) -> None:
    batch, kv_heads, rows, head_dim = new.shape
    block_d = max(16, triton.next_power_of_2(head_dim))
    kernels.append_rows[(batch * kv_heads, rows)](
        new.contiguous(), bank, length.contiguous(), rows, bank.shape[2], head_dim, kv_heads, block_d
    )


def _num_splits(device: torch.device, programs: int, rows: int) -> int:
    """Enough splits that every SM has PROGRAMS_PER_SM programs, but none without a block of rows."""
    blocks = max(1, triton.cdiv(rows, BLOCK_N))
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
    return max(1, min(blocks, MAX_SPLITS, triton.cdiv(PROGRAMS_PER_SM * sms, programs)))


def _interpreted() -> bool:
    """Triton's interpreter multiplies bfloat16 blocks wrongly; there they are widened first."""
    return triton.knobs.runtime.interpret


def _dense_op(query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, visual_slots, text_slots, scale):
    banks = _copies(pvk, pvv, ptk, ptv)
    seen = Seen(vl, tl, vv, tv)
    return dense(query, key, value, banks, seen, len(visual_slots), len(text_slots), scale), *banks


def _focal_op(
    query, key, value, pvk, pvv, ptk, ptv, vl, tl, vv, tv, visual_slots, text_slots, num_fixations, slots, scale, per_kv
):
    banks = _copies(pvk, pvv, ptk, ptv)
    sizes = (len(visual_slots), len(text_slots), num_fixations, len(slots), scale, bool(per_kv))
    output, fixation = focal(query, key, value, banks, Seen(vl, tl, vv, tv), *sizes)
    return output, *banks, fixation


def _gathered_op(query, key, value, visual_key, visual_value, ptk, ptv, tl, vv, tv, text_slots, fixation, scale):
    banks = Banks(visual_key.contiguous(), visual_value.contiguous(), ptk.clone(), ptv.clone())
    output = gathered(query, key, value, banks, Seen(tl, tl, vv, tv), len(text_slots), fixation, scale)
    return output, banks.text_key, banks.text_value


def _copies(*banks: Tensor) -> Banks:
    return Banks(*(bank.clone(memory_format=torch.contiguous_format) for bank in banks))


def register(device: str = "cuda") -> None:
    """Make these the implementation of the three ops on `device`; once per process."""
    if device == "cuda" and not torch.cuda.is_available():
        raise MissingDependencyError("the Triton kernels need a CUDA GPU that torch sees; there is none")
    from . import ops  # which needs onnxscript, and the functions above do not

    ops.dense_attention.register_kernel(device)(_dense_op)
    ops.focal_attention.register_kernel(device)(_focal_op)
    ops.gathered_attention.register_kernel(device)(_gathered_op)
