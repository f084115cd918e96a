"""The ways to compute the three ops that are compared: PyTorch's attention, the CUDA kernels, the Triton kernels."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..kernel_library import KernelLibrary
from .cases import BANKS, Case

SCALE = 0.11
OPS = ("dense", "focal", "gathered")


class Implementation(Protocol):
    """`prepare` gives a layer's own form of its tensors; `run` queues one op on them and returns what it computed:
    output [B,H,n,D], and fixation and status where there are such."""

    name: str
    ops: tuple[str, ...]

    def prepare(self, layer: dict[str, Tensor], case: Case) -> dict[str, Tensor]: ...

    def run(self, op: str, layer: dict[str, Tensor], state: dict[str, Tensor], case: Case) -> dict[str, Tensor]: ...


class Sdpa:
    """Dense attention of PyTorch over one joined cache without padding: the best dense form there is without ours.

    Only for pages of one length; new rows are taken to be in the cache already, so that nothing is copied, and in
    prefill no mask is given, which lets PyTorch choose its fastest kernel.
    """

    name = "torch sdpa"
    ops = ("dense",)

    def prepare(self, layer: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        joined = {"query": layer["query"]}
        for part in ("key", "value"):
            visual, text = (
                layer[f"visual_{part}"][:, :, : case.visual],
                layer[f"text_{part}"][:, :, : case.text + case.rows],
            )
            joined[part] = torch.cat([visual, text], 2)
        return joined

    def run(self, op: str, layer: dict[str, Tensor], state: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        attention = torch.nn.functional.scaled_dot_product_attention
        output = attention(layer["query"], layer["key"], layer["value"], scale=SCALE, enable_gqa=True)
        return {"output": output}


class Kernels:
    """The CUDA kernels of plugins/kernels through their C interface, in the engine form and in place."""

    name = "CUDA kernels"
    ops = OPS

    def __init__(self, library: KernelLibrary) -> None:
        self.library = library

    def prepare(self, layer: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        device = layer["query"].device
        own = {name: tensor.clone() for name, tensor in layer.items()}
        own["output"] = torch.empty_like(layer["query"])
        own["fixation_out"] = torch.empty(case.batch, case.num_key_value_heads, case.fixation_size, **_int64(device))
        own["status_out"] = torch.zeros(1, **_int64(device))
        return own

    def run(self, op: str, layer: dict[str, Tensor], state: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        arrays = {name: layer[name] for name in ("query", "key", "value", "output", "status_out")}
        arrays |= {f"past_{bank}": layer[bank] for bank in BANKS}
        names = ["visual_length", "text_length", "visual_valid", "text_valid", "status"]
        names += {"dense": [], "focal": ["num_fixations"], "gathered": ["fixation", "attend_all"]}[op]
        arrays |= {name: state[name] for name in names}
        if op == "focal":
            arrays["fixation_out"] = layer["fixation_out"]
        stream = torch.cuda.current_stream().cuda_stream if layer["query"].is_cuda else 0
        size = case.fixation_size if op == "focal" else 0
        done = self.library.run(op, scale=SCALE, fixation_size=size, stream=stream, **arrays)
        return {"output": done.output, "status": done.status} | ({"fixation": done.fixation} if op == "focal" else {})


def _int64(device: torch.device) -> dict:
    return {"dtype": torch.int64, "device": device}


class Triton:
    """The Triton kernels of the extra `torch`, in place."""

    name = "Triton kernels"
    ops = OPS

    def __init__(self) -> None:
        from fastocr_trt.export import triton_attention

        self.attention = triton_attention

    def prepare(self, layer: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in layer.items()}

    def run(self, op: str, layer: dict[str, Tensor], state: dict[str, Tensor], case: Case) -> dict[str, Tensor]:
        attention = self.attention
        new = (layer["query"], layer["key"], layer["value"])
        banks = attention.Banks(*(layer[name] for name in attention.Banks._fields))
        seen = attention.Seen(*(state[name] for name in attention.Seen._fields))
        rows = (max(1, case.visual), case.text + case.rows)
        if op == "dense":
            return {"output": attention.dense(*new, banks, seen, *rows, SCALE)}
        if op == "focal":
            sizes = (state["num_fixations"], case.fixation_size)
            output, fixation = attention.focal(*new, banks, seen, *rows, *sizes, SCALE)
            return {"output": output, "fixation": fixation}
        return {"output": attention.gathered(*new, banks, seen, rows[1], state["fixation"], SCALE)}
