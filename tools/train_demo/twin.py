"""The reader's forward pass, made for training: the same parameters, the same numbers, a fraction of the time.

Hugging Face's own pass takes one page after the other through the windows and pads nothing; here pages of one size go
in a batch, patches are cut in the order of the windows, grey pages are not copied six times, and the last layer
computes no row that nobody reads. tests/test_train_demo.py holds the two equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration as Reader

from .characters import VISION_END, VISION_START

PATCH, MERGE = 14, 2


class Rotary(NamedTuple):
    """cos, sin: [rows, head_dim / 2], the angles of the first half of a head (the second half has the same)."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def after(self, first: int) -> Rotary:
        return Rotary(self.cos[first:], self.sin[first:])


class VisionPlan(NamedTuple):
    """What follows from a page's size alone. rotary: of the patches, in window order. raster: visual tokens of the
    window order, in raster order. windows: how many there are."""

    rotary: Rotary
    raster: Tensor
    windows: int


@lru_cache(maxsize=64)
def vision_plan(columns: int, rows: int, window: int, head_dim: int, theta: float) -> VisionPlan:
    if columns % window or rows % window:
        raise ValueError(f"a page of {columns} x {rows} visual tokens is not made of whole windows of {window}")

    def windowed(grid: Tensor) -> Tensor:
        side = window * MERGE
        cut = grid.view(rows // window, window, MERGE, columns // window, window, MERGE)
        return cut.permute(0, 3, 1, 4, 2, 5).reshape(-1, side * side).reshape(-1)

    row, column = torch.meshgrid(torch.arange(rows * MERGE), torch.arange(columns * MERGE), indexing="ij")
    frequency = theta ** -(torch.arange(0, head_dim // 2, 2).float() / (head_dim // 2))
    angle = torch.cat([windowed(axis.contiguous())[:, None] * frequency for axis in (row, column)], -1)
    tokens = torch.arange(columns * rows).view(rows // window, window, columns // window, window)
    raster = torch.argsort(tokens.permute(0, 2, 1, 3).reshape(-1))
    return VisionPlan(Rotary(angle.cos(), angle.sin()), raster, (columns // window) * (rows // window))


@lru_cache(maxsize=256)
def decoder_rotary(
    columns: int, rows: int, text: int, head_dim: int, theta: float, sections: tuple[int, ...]
) -> Rotary:
    """Angles of: vision start, columns x rows visual tokens, vision end, `text` tokens."""
    row = torch.arange(rows)[:, None].expand(rows, columns).reshape(-1)
    column = torch.arange(columns)[None].expand(rows, columns).reshape(-1)
    after = torch.arange(text + 1) + 1 + max(columns, rows)
    position = torch.stack([
        torch.cat([torch.zeros(1, dtype=torch.long), visual + 1, after])
        for visual in (torch.zeros_like(row), row, column)
    ]).float()  # fmt: skip
    frequency = theta ** -(torch.arange(0, head_dim, 2).float() / head_dim)
    section = torch.repeat_interleave(torch.arange(3), torch.tensor(sections))
    angle = position[section].T * frequency
    return Rotary(angle.cos(), angle.sin())


def _norm(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, 1e-6)


def _mlp(x: Tensor, mlp: torch.nn.Module) -> Tensor:
    return mlp.down_proj(F.silu(mlp.gate_proj(x)) * mlp.up_proj(x))


def see(reader: Reader, pages: Tensor) -> Tensor:
    """pages [B,height,width] uint8 grey, sides in whole windows. Returns the visual tokens [B,N,width] by rows."""
    vision, config = reader.model.visual, reader.config.vision_config
    batch, rows, columns = pages.shape[0], pages.shape[1] // 28, pages.shape[2] // 28
    window, heads = config.window_size // 28, config.num_heads
    head_dim = config.hidden_size // heads
    plan = vision_plan(columns, rows, window, head_dim, config.rope_parameters["rope_theta"])
    cut = pages.view(batch, rows // window, window, MERGE, PATCH, columns // window, window, MERGE, PATCH)
    patches = cut.permute(0, 1, 5, 2, 6, 3, 7, 4, 8).reshape(batch, -1, PATCH * PATCH)
    kernel = vision.patch_embed.proj.weight.sum((1, 2)).flatten(1)
    x = F.linear(patches.float() / 127.5 - 1, kernel)
    count = x.shape[1]
    for number, block in enumerate(vision.blocks):
        parts = 1 if number in config.fullatt_block_indexes else plan.windows
        qkv = block.attn.qkv(_norm(x, block.norm1)).view(batch, count, 3, heads, head_dim)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        query, key = plan.rotary.turn(query), plan.rotary.turn(key)
        if parts > 1:
            query, key, value = (
                y.reshape(batch, heads, parts, count // parts, head_dim).transpose(1, 2).flatten(0, 1)
                for y in (query, key, value)
            )
        seen = F.scaled_dot_product_attention(query, key, value)
        x = x + block.attn.proj(seen.transpose(1, 2).reshape(batch, count, -1))
        x = x + _mlp(_norm(x, block.norm2), block.mlp)
    merged = _norm(x, vision.merger.ln_q).view(batch, count // MERGE**2, -1)
    return vision.merger.mlp(merged)[:, plan.raster]


class Reading(NamedTuple):
    """logits [B,T,vocabulary] of the text rows; attention: for each guided layer the log shares [B,heads,T,N] of the
    visual tokens among themselves; before: what each guided layer is given, [B,N,width] of the visual tokens and
    [B,T,width] of the text; links: for each linked layer the log shares [B,heads,K] of the links."""

    logits: Tensor
    attention: list[Tensor]
    before: list[tuple[Tensor, Tensor]]
    links: list[Tensor]


class Links(NamedTuple):
    """Layers in which visual tokens are watched looking at others before them. tokens [B,K,2]: from, to."""

    layers: tuple[int, ...]
    tokens: Tensor


def read(
    reader: Reader,
    visual: Tensor,
    input_ids: Tensor,
    columns: int,
    rows: int,
    guided: tuple[int, ...] = (),
    links: Links | None = None,
) -> Reading:
    """visual [B,N,width] from `see`; input_ids [B,T] the text after the image, the prompt included."""
    decoder, config = reader.model.language_model, reader.config.text_config
    batch, text = input_ids.shape
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = config.hidden_size // heads
    rope = config.rope_parameters
    rotary = decoder_rotary(columns, rows, text, head_dim, rope["rope_theta"], tuple(rope["mrope_section"]))
    embed = decoder.embed_tokens.weight
    frame = embed[[VISION_START, VISION_END]].expand(batch, 2, -1)
    x = torch.cat([frame[:, :1], visual, frame[:, 1:], embed[input_ids]], 1)
    before = visual.shape[1] + 2
    attention, given, linked = [], [], []
    for number, layer in enumerate(decoder.layers):
        weights, last = layer.self_attn, number == len(decoder.layers) - 1
        first = before if last else 0
        h = _norm(x, layer.input_layernorm)
        length = h.shape[1]
        query = weights.q_proj(h[:, first:]).view(batch, length - first, heads, head_dim).transpose(1, 2)
        key = weights.k_proj(h).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        value = weights.v_proj(h).view(batch, length, kv_heads, head_dim).transpose(1, 2)
        query, key = rotary.after(first).turn(query), rotary.turn(key)
        if last:
            mask = torch.ones(length - first, length, dtype=torch.bool).tril(first)
            seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
        else:
            seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        if number in guided:
            given.append((x[:, 1 : before - 1], x[:, before:]))
            attention.append(_scores(query[:, :, before - first :], key[:, :, 1 : before - 1]).log_softmax(-1))
        if links and number in links.layers:
            linked.append(_link_shares(query[:, :, 1 : before - 1], key[:, :, 1 : before - 1], links.tokens))
        x = x[:, first:] + weights.o_proj(seen.transpose(1, 2).reshape(batch, length - first, -1))
        x = x + _mlp(_norm(x, layer.post_attention_layernorm), layer.mlp)
    logits = F.linear(_norm(x[:, -text:], decoder.norm), reader.lm_head.weight)
    return Reading(logits, attention, given, linked)


def _scores(query: Tensor, key: Tensor) -> Tensor:
    """[B,heads,n,N] of query [B,heads,n,head_dim] and key [B,KV,N,head_dim], turned; no mask."""
    (batch, heads, rows, head_dim), kv_heads = query.shape, key.shape[1]
    group = query.reshape(batch, kv_heads, -1, head_dim)
    return (group @ key.transpose(2, 3) * head_dim**-0.5).view(batch, heads, rows, -1)


def _link_shares(query: Tensor, key: Tensor, tokens: Tensor) -> Tensor:
    """Log shares [B,heads,K] of the attention among visual tokens up to its own that each link's first token has on its
    second; query, key: of the visual tokens, turned."""
    heads, head_dim = query.shape[1], query.shape[3]
    start, end = tokens.unbind(-1)
    scores = _scores(query.gather(2, start[:, None, :, None].expand(-1, heads, -1, head_dim)), key)
    later = torch.arange(key.shape[2]) > start[..., None]
    shares = scores.masked_fill(later[:, None], float("-inf")).log_softmax(-1)
    return shares.gather(3, end[:, None, :, None].expand(-1, heads, -1, -1)).squeeze(-1)
