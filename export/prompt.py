"""The chat template, rendered once: the runtime puts images and the user's words between its pieces, without jinja."""

from __future__ import annotations

from pathlib import Path

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from ..errors import ExportError
from ..manifest import Prompt
from .checkpoint import read_json

DEFAULT_PROMPT = "Read all the text in the image."
_PLACEHOLDER = "{prompt}"
_WORDS = "fastocrUserWords"  # stands for the user's words while the template is rendered


def render_prompt(
    folder: Path, tokenizer: PreTrainedTokenizerBase, image_token_id: int, default: str | None = None
) -> Prompt:
    """Split the folder's chat template, rendered for one user turn of images and words, into a manifest's Prompt.

    Raises ExportError where there is no template, or where it drops the words or the images.
    """
    template = _template(folder) or tokenizer.chat_template
    if not template:
        raise ExportError(f"{folder} has no chat template (chat_template.jinja, or in tokenizer_config.json)")
    image = tokenizer.convert_ids_to_tokens(image_token_id)

    def render(images: int) -> list[str]:
        content = [*[{"type": "image"}] * images, {"type": "text", "text": _WORDS}]
        try:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": content}],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ExportError(f"the chat template of {folder} cannot be rendered: {error}") from None
        if text.count(_WORDS) != 1 or text.count(image) != images or _PLACEHOLDER in text:
            raise ExportError(
                f"the chat template of {folder} does not give each image one {image} and the user's words one place"
            )
        return text.replace(_WORDS, _PLACEHOLDER).split(image)

    (head, tail), (head_of_two, between, tail_of_two) = render(1), render(2)
    image_before = _common_suffix(head, between)
    image_after = between[: len(between) - len(image_before)]
    if (head, tail) != (head_of_two, tail_of_two) or not tail.startswith(image_after):
        raise ExportError(f"the chat template of {folder} lays out two images otherwise than one, which is unsupported")
    return Prompt(
        before=head[: len(head) - len(image_before)],
        image_before=image_before,
        image_after=image_after,
        after=tail[len(image_after) :],
        default=DEFAULT_PROMPT if default is None else default,
        image_token_id=image_token_id,
    )


def _template(folder: Path) -> str | None:
    """The folder's multimodal template: a file of its own goes before the tokenizer's."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if (folder / "chat_template.json").is_file():
        return read_json(folder / "chat_template.json", "its chat template").get("chat_template")
    return None


def _common_suffix(first: str, second: str) -> str:
    length = 0
    while length < min(len(first), len(second)) and first[-1 - length] == second[-1 - length]:
        length += 1
    return first[len(first) - length :]
