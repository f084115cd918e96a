"""A whole model decoded by the oracle: transformers' layers around `reference.py`, one page, plain and slow."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from fastocr_trt import reference
from fastocr_trt.fixation import FixationPolicy

NAME = "fastocr_oracle"


class OracleCache(Cache):
    """Both banks of every layer as growing arrays, and the fixation."""

    def __init__(self, num_layers: int, policy: FixationPolicy, k: int) -> None:
        self.layers = []
        self.policy, self.k = policy, k
        self.banks = [None] * num_layers
        self.lengths = {"visual": 0, "text": 0}
        self.kind, self.decoding, self.fixation = "text", False, None

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

    def attend(self, layer: int, query, key, value, scale: float):
        rows = query.shape[2]
        if self.banks[layer] is None:
            self.banks[layer] = [np.zeros((1, key.shape[1], 0, key.shape[3]), np.float32)] * 4
        room = [
            np.concatenate([b[:, :, : self.lengths[k]], np.zeros((1, b.shape[1], rows, b.shape[3]), b.dtype)], 2)
            for b, k in zip(self.banks[layer], ("visual", "visual", "text", "text"), strict=True)
        ]
        length = {k: np.array([v]) for k, v in self.lengths.items()}
        valid = {k: np.repeat(length[k][:, None], rows, 1) for k in length}
        valid[self.kind] = valid[self.kind] + np.arange(1, rows + 1)
        kind = self.policy.kind(layer) if self.decoding else "dense"
        if not self.decoding and layer == self.policy.focal_layers[-1]:
            kind = "focal"
        if kind == "gathered":
            out = reference.gathered_attention(
                query, key, value, *room, length["text"], valid["visual"], valid["text"], self.fixation, scale=scale
            )
            self.banks[layer] = [*room[:2], *out[1:]]
            return out.output
        args = (query, key, value, *room, length["visual"], length["text"], valid["visual"], valid["text"])
        if kind == "dense":
            out = reference.dense_attention(*args, scale=scale)
        else:
            per_head = self.policy.per_kv_head
            out = reference.focal_attention(
                *args, np.array([self.k]), max(1, self.k), scale=scale, per_kv_head=per_head
            )
            self.fixation = out.fixation
        self.banks[layer] = list(out[1:5])
        return out.output


def _attention(module, query, key, value, attention_mask, scaling=None, oracle: OracleCache | None = None, **kwargs):
    arrays = [t.numpy() for t in (query, key, value)]
    return torch.from_numpy(oracle.attend(module.layer_idx, *arrays, scaling)).transpose(1, 2), None


AttentionInterface.register(NAME, _attention)


@torch.no_grad()
def oracle_decode(model, visual_embeds: np.ndarray, prompt, policy: FixationPolicy, keep: float, steps: int):
    """(token ids, the fixation after each token as sorted lists) of a greedy decode of at most `steps` tokens.

    prompt: PromptTokens; visual_embeds [tokens, hidden_size].
    """
    language = model.model.language_model
    before = language.config._attn_implementation
    language.config._attn_implementation = NAME
    try:
        k = policy.num_fixations(len(visual_embeds), keep)
        cache = OracleCache(language.config.num_hidden_layers, policy, k)
        embed = language.get_input_embeddings()
        visual = torch.from_numpy(visual_embeds)

        def call(kind, embeds, positions):
            cache.kind = kind
            out = language(
                inputs_embeds=embeds, position_ids=positions, cache=cache, use_cache=True, oracle=cache
            ).last_hidden_state
            cache.lengths[kind] += embeds.shape[1]
            return int(model.lm_head(out[0, -1]).argmax())

        token = -1
        for chunk in prompt.chunks:
            ids = torch.from_numpy(chunk.input_ids)
            embeds = visual[-1 - ids] if chunk.kind == "visual" else embed(ids)
            token = call(chunk.kind, embeds[None], torch.from_numpy(chunk.position_ids)[:, None])
        tokens, fixations = [token], [_sets(cache.fixation)]
        cache.decoding = True
        position = prompt.next_position
        stop = model.generation_config.eos_token_id
        while len(tokens) < steps and tokens[-1] != stop:
            positions = torch.full((3, 1, 1), position)
            tokens.append(call("text", embed(torch.tensor([[tokens[-1]]])), positions))
            fixations.append(_sets(cache.fixation))
            position += 1
        return tokens, fixations
    finally:
        language.config._attn_implementation = before


def _sets(fixation: np.ndarray) -> list[list[int]]:
    return [sorted(head[head >= 0].tolist()) for head in fixation[0]]
