"""The demo reader: an exact Qwen2_5_VLForConditionalGeneration, its sizes, and how it is begun.

Begun either from nothing or by growing an earlier reader: layers and neurons that add nothing at first (their output
projections are zero) are put beside the trained ones, so that the grown reader reads as the earlier one did.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from .characters import END, IMAGE, PADDING, VIDEO, VISION_END, VISION_START, VOCABULARY


@dataclass(frozen=True)
class Sizes:
    """Sizes of a reader. full_attention: numbers of the vision blocks that see the whole page."""

    vision_depth: int = 4
    vision_width: int = 128
    vision_heads: int = 4
    vision_mlp: int = 640
    full_attention: tuple[int, ...] = (2,)
    window_tokens: int = 8
    layers: int = 10
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    mlp: int = 512


FULL = Sizes()
TINY = Sizes(vision_depth=2, vision_width=32, vision_heads=2, vision_mlp=48, full_attention=(1,), layers=3, width=64,
             heads=2, kv_heads=1, mlp=64)  # fmt: skip
"""For tests: trains a step in milliseconds."""

# Where the blocks and layers of a smaller reader go in a FULL one; the other places are new.
GROWN_BLOCKS = (0, 1, 3)
GROWN_LAYERS = (0, 1, 2, 3, 4, 7)


def configuration(sizes: Sizes) -> Qwen2_5_VLConfig:
    """The Hugging Face configuration. RoPE bases are small: the usual 1e6 leaves the position sections of such short
    pages almost constant."""
    head_dim = sizes.width // sizes.heads
    quarter = head_dim // 2 * 14 // 32
    return Qwen2_5_VLConfig(
        text_config={
            "vocab_size": VOCABULARY,
            "hidden_size": sizes.width,
            "intermediate_size": sizes.mlp,
            "num_hidden_layers": sizes.layers,
            "num_attention_heads": sizes.heads,
            "num_key_value_heads": sizes.kv_heads,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 30.0,
                "mrope_section": [head_dim // 2 - 2 * quarter, quarter, quarter],
            },
            "bos_token_id": None,
            "eos_token_id": END,
            "pad_token_id": PADDING,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": sizes.vision_depth,
            "hidden_size": sizes.vision_width,
            "intermediate_size": sizes.vision_mlp,
            "num_heads": sizes.vision_heads,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": sizes.window_tokens * 28,
            "out_hidden_size": sizes.width,
            "fullatt_block_indexes": list(sizes.full_attention),
            "rope_parameters": {"rope_type": "axial", "rope_theta": 100.0},
            "tokens_per_second": 2,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        tie_word_embeddings=True,
    )


def new_reader(sizes: Sizes, seed: int = 0) -> Qwen2_5_VLForConditionalGeneration:
    """A reader that knows nothing, float32."""
    torch.manual_seed(seed)
    reader = Qwen2_5_VLForConditionalGeneration(configuration(sizes)).float()
    reader.generation_config.eos_token_id = END
    reader.generation_config.pad_token_id = PADDING
    reader.generation_config.bos_token_id = None
    with torch.no_grad():
        for name, parameter in reader.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "attn.proj.weight")):
                parameter.normal_(std=0.02)
            elif "embed_tokens" in name:
                parameter.normal_(std=0.05)
            elif "patch_embed" in name:
                # Grey pages: the six copies of a patch (three colours, two frames) act as one.
                copies = parameter.shape[1] * parameter.shape[2]
                one = torch.randn_like(parameter[:, :1, :1]) * (14 * 14) ** -0.5 / copies
                parameter.copy_(one.expand_as(parameter))
            elif parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
    return reader


def grown_reader(earlier: nn.Module, sizes: Sizes = FULL, seed: int = 0) -> Qwen2_5_VLForConditionalGeneration:
    """A reader of `sizes` that reads as `earlier` does, float32.

    earlier: of the same widths, with narrower vision MLPs at most, and as many blocks and layers as `sizes` or as
    GROWN_BLOCKS and GROWN_LAYERS have places for. ValueError for another.
    """
    reader = new_reader(sizes, seed)
    weights = reader.state_dict()
    blocks = _places(earlier.config.vision_config.depth, sizes.vision_depth, GROWN_BLOCKS)
    layers = _places(earlier.config.text_config.num_hidden_layers, sizes.layers, GROWN_LAYERS)
    kept = set()
    for name, value in earlier.state_dict().items():
        name = _moved(name, r"(visual\.blocks\.)(\d+)", blocks)
        name = _moved(name, r"(language_model\.layers\.)(\d+)", layers)
        _put(name, weights[name], value)
        kept.add(name)
    for name, value in weights.items():
        if name not in kept and name.endswith(
            ("o_proj.weight", "down_proj.weight", "down_proj.bias", "attn.proj.weight")
        ):
            value.zero_()
    reader.load_state_dict(weights)
    return reader


def _places(earlier: int, now: int, grown: tuple[int, ...]) -> tuple[int, ...]:
    if earlier == now:
        return tuple(range(now))
    if earlier != len(grown):
        raise ValueError(f"a reader of {earlier} layers or blocks does not grow to {now}; one of {len(grown)} does")
    return grown


def _put(name: str, value: Tensor, earlier: Tensor) -> None:
    """`earlier` into `value`; new neurons of a vision MLP come after those there were, and add nothing."""
    if value.shape != earlier.shape and "visual.blocks" not in name:
        raise ValueError(f"{name} is {tuple(earlier.shape)} in the earlier reader, {tuple(value.shape)} here")
    if value.shape != earlier.shape and "down_proj" in name:
        value.zero_()
    value[tuple(slice(length) for length in earlier.shape)] = earlier.float()


def _moved(name: str, pattern: str, places: tuple[int, ...]) -> str:
    return re.sub(pattern, lambda found: f"{found[1]}{places[int(found[2])]}", name)
