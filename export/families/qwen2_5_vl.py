"""Qwen2.5-VL and Qwen2-VL: one layout of modules and of weights, two vision towers.

Checkpoints of this architecture (olmOCR, Nanonets and others) carry the same `model_type`.
"""

from __future__ import annotations

import copy

import torch
import transformers
from torch import nn
from transformers.initialization import no_init_weights

from ...manifest import DecoderShape, VisionShape

MODEL_TYPES = {
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
}


def parameter_name(key: str) -> str:
    """The model's name of the tensor called `key` in a checkpoint file; older files have shorter names."""
    if key.startswith("visual."):
        return f"model.{key}"
    if key.startswith("model.") and not key.startswith(("model.language_model.", "model.visual.")):
        return key.replace("model.", "model.language_model.", 1)
    return key


def build(config: transformers.PreTrainedConfig, dtype: torch.dtype, num_layers: int | None = None) -> nn.Module:
    """The model with uninitialised parameters, whose memory is not touched; buffers (rotary frequencies) are real.

    num_layers: the decoder's depth where it is not the config's.
    """
    config = copy.deepcopy(config)
    if num_layers is not None:
        config.text_config.num_hidden_layers = num_layers
        config.text_config.layer_types = config.text_config.layer_types[:num_layers]
    with no_init_weights():
        return getattr(transformers, MODEL_TYPES[config.model_type])._from_config(config, dtype=dtype).eval()


def parameter_shapes(config: transformers.PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter that the checkpoint must hold."""
    with torch.device("meta"):
        model = build(config, torch.float32)
    tied = aliases(config)
    return {name: tuple(value.shape) for name, value in model.named_parameters() if name not in tied}


def decoder(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The language model and the output head."""
    return model.model.language_model, model.lm_head


def aliases(config: transformers.PreTrainedConfig) -> dict[str, str]:
    """Parameters that are another's storage."""
    tied = {"lm_head.weight": "model.language_model.embed_tokens.weight"}
    return tied if config.tie_word_embeddings else {}


def decoder_shape(config: transformers.PreTrainedConfig) -> DecoderShape:
    text = config.text_config
    return DecoderShape(
        num_layers=text.num_hidden_layers,
        num_attention_heads=text.num_attention_heads,
        num_key_value_heads=text.num_key_value_heads,
        head_dim=text.hidden_size // text.num_attention_heads,
        hidden_size=text.hidden_size,
        vocab_size=text.vocab_size,
    )


def vision_shape(config: transformers.PreTrainedConfig) -> VisionShape:
    """Qwen2-VL has no windows: the size then only shapes inputs that no block reads."""
    vision = config.vision_config
    return VisionShape(
        patch_size=vision.patch_size,
        spatial_merge_size=vision.spatial_merge_size,
        temporal_patch_size=vision.temporal_patch_size,
        in_channels=vision.in_channels,
        window_size=getattr(vision, "window_size", 4 * vision.patch_size * vision.spatial_merge_size),
    )


def check(config: transformers.PreTrainedConfig) -> None:
    """Raise ValueError for what the exported graphs could not do faithfully."""
    if "sliding_attention" in config.text_config.layer_types:
        raise ValueError("sliding-window attention is unsupported (use_sliding_window must be false)")
    rope_type = config.text_config.rope_parameters.get("rope_type", "default")
    if rope_type in ("dynamic", "longrope"):
        raise ValueError(f"rotary embedding of type {rope_type!r} changes with the length, which is unsupported")
