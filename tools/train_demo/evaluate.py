"""How well a checkpoint reads unseen pages: plain greedy decoding in transformers, float32, no fixation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rapidfuzz.distance import Levenshtein
from transformers import Qwen2_5_VLForConditionalGeneration as Reader

from fastocr_trt.demo.layouts import compose, most_characters
from fastocr_trt.demo.pages import SEEDS, SIZES, GeneratedPage, generate_page

from .characters import CHARACTERS, END, IMAGE, PROMPT, VISION_END, VISION_START

_AT_ONCE = 8


class Score(NamedTuple):
    """Of some pages. error_rate: edits by characters, all pages together; median: of the pages' rates. exact: pages
    without an error. ended: pages whose reading stops by itself, and in their last line. repeating: pages on which
    three lines in a row come again that are on the page once."""

    pages: int
    characters: int
    error_rate: float
    median: float
    exact: int
    ended: int
    repeating: int


def evaluate(
    reader: Path,
    pages: int,
    layouts: Sequence[str],
    visual_tokens: Sequence[int],
    first_seed: int | None,
    threads: int,
    show: int,
    type_sizes: Sequence[int] | None = None,
) -> dict[tuple[str, int, int | None], Score]:
    """Print a table, a row as soon as it is known, and return the scores by (layout, visual tokens, type size).

    type_sizes: in pixels; pages of each, for layouts that training has. None: pages as they come, of all sizes.
    """
    torch.set_num_threads(threads)
    model = Reader.from_pretrained(reader, dtype=torch.float32).eval()
    first = SEEDS["benchmarks"].start if first_seed is None else first_seed
    print("| layout | visual tokens | type, px | pages | characters | CER | median | exact | end found | repeating |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    scores = {}
    for size, layout, pixels in product(visual_tokens, layouts, type_sizes or (None,)):
        truth = [_page(seed, layout, size, pixels) for seed in range(first, first + pages)]
        readings = read_pages(model, truth)
        texts = [page.text for page in truth]
        s = scores[layout, size, pixels] = score(texts, readings)
        print(
            f"| {layout} | {size} | {pixels or 'any'} | {s.pages} | {s.characters} | {s.error_rate:.1%} "
            f"| {s.median:.1%} | {s.exact} | {s.ended} | {s.repeating} |",
            flush=True,
        )
        for text, (reading, _) in list(zip(texts, readings, strict=True))[:show]:
            print(f"--- page\n{text}\n--- reading\n{reading}\n---", flush=True)
    return scores


def _page(seed: int, layout: str, visual_tokens: int, pixels: int | None) -> GeneratedPage:
    """The page of a seed, set in type of so many pixels."""
    if pixels is None:
        return generate_page(seed, layout, visual_tokens)
    source = Random(f"{layout} {visual_tokens} {pixels} {seed}")
    page = compose(source, *SIZES[visual_tokens], layout, size=pixels)
    return GeneratedPage(Image.fromarray(page.grey).convert("RGB"), page.text)


def read_pages(model: Reader, pages: Sequence[GeneratedPage]) -> list[tuple[str, bool]]:
    """(text, whether it stopped by itself) of pages of one size."""
    readings: list[tuple[str, bool]] = []
    for start in range(0, len(pages), _AT_ONCE):
        some = pages[start : start + _AT_ONCE]
        inputs = model_inputs(np.stack([np.array(page.image.convert("L")) for page in some]))
        cap = round(most_characters(int((inputs["input_ids"][0] == IMAGE).sum())) * 1.15)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=cap, do_sample=False)
        for row in output[:, inputs["input_ids"].shape[1] :].tolist():
            ended = END in row
            ids = row[: row.index(END)] if ended else row
            readings.append(("".join(CHARACTERS[i] for i in ids if i < len(CHARACTERS)), ended))
    return readings


def model_inputs(grey: np.ndarray) -> dict[str, torch.Tensor]:
    """What the processor makes of grey pages [B,height,width] uint8, with the prompt."""
    batch, rows, columns = grey.shape[0], grey.shape[1] // 28, grey.shape[2] // 28
    pixels = (torch.from_numpy(grey).float() / 255 - 0.5) / 0.5
    cut = pixels.view(batch, rows, 2, 14, columns, 2, 14).permute(0, 1, 4, 2, 5, 3, 6)
    patches = cut.reshape(-1, 1, 1, 196).expand(-1, 3, 2, 196).reshape(-1, 1176)
    ids = torch.tensor([VISION_START, *[IMAGE] * (rows * columns), VISION_END, *PROMPT]).expand(batch, -1)
    return {
        "pixel_values": patches,
        "image_grid_thw": torch.tensor([[1, rows * 2, columns * 2]] * batch),
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }


def score(texts: Sequence[str], readings: Sequence[tuple[str, bool]]) -> Score:
    """texts: the truth; readings: (text, whether it stopped by itself)."""
    edits = [Levenshtein.distance(text, reading) for text, (reading, _) in zip(texts, readings, strict=True)]
    lengths = [len(text) for text in texts]
    return Score(
        pages=len(texts),
        characters=sum(lengths),
        error_rate=sum(edits) / sum(lengths),
        median=float(np.median([edit / length for edit, length in zip(edits, lengths, strict=True)])),
        exact=edits.count(0),
        ended=sum(
            ended and Levenshtein.normalized_distance(text.split("\n")[-1], reading.split("\n")[-1]) < 0.5
            for text, (reading, ended) in zip(texts, readings, strict=True)
        ),
        repeating=sum(_repeats(text, reading) for text, (reading, _) in zip(texts, readings, strict=True)),
    )


def _repeats(text: str, reading: str) -> bool:
    def threes(written: str) -> Counter:
        lines = written.split("\n")
        return Counter(zip(lines, lines[1:], lines[2:], strict=False))

    known = threes(text)
    return any(count > max(1, known[three]) for three, count in threes(reading).items())
