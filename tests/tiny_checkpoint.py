"""A random, tiny Qwen2.5-VL checkpoint: every mechanism of a real one, in a folder that exports in seconds."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

import fastocr_trt.demo

DEMO = Path(fastocr_trt.demo.__file__).parent
SMALL_FILES = ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json", "chat_template.jinja")


def config(tied: bool = False, **text) -> transformers.Qwen2_5_VLConfig:
    """Four text layers, a vision tower with one windowed and one full block."""
    return transformers.Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 128,
            "max_position_embeddings": 512,
            "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 1e4},
            "eos_token_id": [98, 96],
            "pad_token_id": 96,
        }
        | text,
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "window_size": 112,
            "fullatt_block_indexes": [1],
        },
        image_token_id=102,
        video_token_id=103,
        vision_start_token_id=99,
        vision_end_token_id=100,
        tie_word_embeddings=tied,
    )


def model(tied: bool = False, seed: int = 0, **text) -> transformers.Qwen2_5_VLForConditionalGeneration:
    """The model in float32, with weights large enough that every layer matters."""
    torch.manual_seed(seed)
    made = transformers.Qwen2_5_VLForConditionalGeneration(config(tied, **text)).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
            elif "bias" in name:
                parameter.normal_(std=0.1)
            else:
                parameter.normal_(1, 0.1)
    return made


def save(made: transformers.PreTrainedModel, folder: Path, max_shard_size: str = "5GB") -> Path:
    """Write the checkpoint with the demo's tokenizer, template and image processing."""
    made.save_pretrained(folder, max_shard_size=max_shard_size)
    for name in SMALL_FILES:
        shutil.copyfile(DEMO / name, folder / name)
    return folder
