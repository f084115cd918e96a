"""A checkpoint read by transformers itself: the yardstick of fastocr-parity and of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from ..errors import ExportError


class TransformersReading(NamedTuple):
    """token_ids: what generate wrote, without the stop token."""

    text: str
    token_ids: list[int]


class TransformersReader:
    """Greedy `generate` with sdpa attention on the CPU; dense, since transformers knows no fixations.

    Image processor, tokenizer and chat template are the checkpoint's own, so that preprocessing and prompt are
    compared too. dtype: fp32 or bf16. Raises ExportError where the checkpoint cannot be loaded.
    """

    def __init__(self, model: Path, threads: int | None = None, dtype: str = "fp32"):
        import torch
        import transformers
        from transformers import AutoModelForImageTextToText, AutoTokenizer
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        from .weights import DTYPES

        if threads is not None:
            torch.set_num_threads(threads)
        transformers.utils.logging.disable_progress_bar()  # loading takes a moment, and stderr is for errors
        try:
            self.model = AutoModelForImageTextToText.from_pretrained(model, dtype=DTYPES[dtype]).eval()
            self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(model)
            self.tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise ExportError(f"transformers cannot load {model}: {first}") from None
        self.template = self.tokenizer.chat_template or _template_of(model)
        generation = self.model.generation_config
        stops = generation.eos_token_id
        self.stop_token_ids = tuple(stops) if isinstance(stops, list | tuple) else (stops,)

    def inputs(self, image: Image.Image, prompt: str) -> dict[str, Any]:
        """The model's arguments for one page, as the checkpoint's own processors make them. image: RGB."""
        import torch

        pixels = self.image_processor(images=[image], return_tensors="pt")
        rows = int(pixels["image_grid_thw"][0].prod()) // self.image_processor.merge_size**2
        token = self.tokenizer.convert_ids_to_tokens(self.model.config.image_token_id)
        content = [{"type": "image"}, {"type": "text", "text": prompt}]
        rendered = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}],
            chat_template=self.template,
            add_generation_prompt=True,
            tokenize=False,
        )
        ids = self.tokenizer(rendered.replace(token, token * rows), return_tensors="pt", add_special_tokens=False)
        input_ids = ids["input_ids"]
        return {
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
            "mm_token_type_ids": (input_ids == self.model.config.image_token_id).int(),
            "pixel_values": pixels["pixel_values"],
            "image_grid_thw": pixels["image_grid_thw"],
        }

    def read(self, image: Image.Image, prompt: str, max_new_tokens: int) -> TransformersReading:
        """One page. image: RGB. At most `max_new_tokens` tokens, the stop token included."""
        import torch

        inputs = self.inputs(image, prompt)
        with torch.inference_mode():
            written = self.model.generate(
                **inputs, do_sample=False, repetition_penalty=1.0, max_new_tokens=max_new_tokens
            )[0, inputs["input_ids"].shape[1] :].tolist()
        if written and written[-1] in self.stop_token_ids:
            written.pop()
        return TransformersReading(self.tokenizer.decode(written, skip_special_tokens=True), written)


def _template_of(model: Path) -> str:
    """The chat template of a checkpoint whose tokenizer has none: chat_template.jinja or chat_template.json."""
    from .checkpoint import read_json

    jinja, old = Path(model) / "chat_template.jinja", Path(model) / "chat_template.json"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    if old.is_file() and isinstance(template := read_json(old, "its chat template").get("chat_template"), str):
        return template
    raise ExportError(f"{model} has no chat template: neither its tokenizer nor chat_template.jinja gives one")
