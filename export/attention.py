"""Attention of a Hugging Face decoder, replaced by the three ops through transformers' own extension points.

`AttentionInterface` gives the op, a plain `Cache` hands K and V through: the op owns the cache write. No mask function
is registered for the name, so transformers makes no mask.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from ..fixation import FixationPolicy
from . import ops

IMPLEMENTATION = "fastocr"


@dataclass
class Banks:
    """One layer's two banks, [B,KV,VCAP,D] and [B,KV,TCAP,D]."""

    visual_key: Tensor
    visual_value: Tensor
    text_key: Tensor
    text_value: Tensor


@dataclass
class State:
    """What all layers of one call share (see docs/architecture.md), and the fixation as it passes through them.

    decoding: whether layers follow the policy; otherwise all are dense and the last focal layer selects.
    """

    policy: FixationPolicy
    decoding: bool
    past: list[Banks]
    visual_length: Tensor
    text_length: Tensor
    visual_valid: Tensor
    text_valid: Tensor
    visual_slots: Tensor
    text_slots: Tensor
    num_fixations: Tensor
    fixation_slots: Tensor
    fixation: Tensor | None = None
    present: dict[int, dict[str, Tensor]] = field(default_factory=dict)

    def kind(self, layer: int) -> str:
        if self.decoding:
            return self.policy.kind(layer)
        return "focal" if layer == self.policy.focal_layers[-1] else "dense"

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [B,H,n,D]; key, value [B,KV,n,D]; gives [B,H,n,D] and notes the layer's present banks."""
        past, kind = self.past[layer], self.kind(layer)
        visual, text = (past.visual_key, past.visual_value), (past.text_key, past.text_value)
        rows = (self.visual_valid, self.text_valid)
        if kind == "gathered":
            outputs = torch.ops.fastocr.gathered_attention(
                query, key, value, *visual, *text, self.text_length, *rows, self.text_slots, self.fixation, scale
            )
            output, *banks = outputs
            self.present[layer] = dict(zip(ops.TEXT, banks, strict=True))
            return output
        lengths, slots = (self.visual_length, self.text_length), (self.visual_slots, self.text_slots)
        inputs = (query, key, value, *visual, *text, *lengths, *rows, *slots)
        if kind == "dense":
            output, *banks = torch.ops.fastocr.dense_attention(*inputs, scale)
        else:
            per_kv_head = int(self.policy.per_kv_head)
            output, *banks, self.fixation = torch.ops.fastocr.focal_attention(
                *inputs, self.num_fixations, self.fixation_slots, scale, per_kv_head
            )
        self.present[layer] = dict(zip(ops.BANKS, banks, strict=True))
        return output


class TwoBankCache(Cache):
    """A cache that keeps nothing: the ops write the banks. It lives inside one traced call."""

    def __init__(self, state: State):
        self.layers = []
        self.state = state

    def update(self, key, value, layer_idx, *args, **kwargs):
        return key, value

    def get_seq_length(self, layer_idx=0):
        return 0

    def get_query_offset(self, layer_idx=0):
        return 0

    def get_mask_sizes(self, query_length, layer_idx):
        return query_length, 0

    @property
    def is_compileable(self):
        return True


def attention(module, query, key, value, attention_mask, scaling=None, fastocr_state: State | None = None, **kwargs):
    """The attention function of transformers' AttentionInterface; its output is [B,n,H,D]."""
    scale = module.head_dim**-0.5 if scaling is None else scaling
    output = fastocr_state.attend(module.layer_idx, query, key, value, scale)
    return output.transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, attention)
