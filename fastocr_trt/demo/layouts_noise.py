"""What scanning does to a page: grey paper, pale ink, blur, noise, JPEG artefacts. Two pages in five stay clean."""

from __future__ import annotations

import io
from random import Random

import numpy as np
from PIL import Image, ImageFilter


def print_page(source: Random, ink: np.ndarray) -> np.ndarray:
    """ink [height,width] uint8, 255 is full ink. Returns the page as grey levels, same shape, uint8."""
    if source.random() < 0.4:
        return (255 - ink * source.uniform(0.75, 1.0)).astype(np.uint8)
    paper, darkness = source.uniform(215, 255), source.uniform(0.55, 1.0)
    if source.random() < 0.3:
        radius = source.uniform(0.2, 0.7)
        ink = np.asarray(Image.fromarray(ink).filter(ImageFilter.GaussianBlur(radius)))
    page = paper * (1 - ink.astype(np.float32) * (darkness / 255))
    if source.random() < 0.25:
        page *= np.linspace(source.uniform(0.88, 1), 1, page.shape[1], dtype=np.float32)
    if source.random() < 0.5:
        noise = np.random.default_rng(source.getrandbits(64)).standard_normal(page.shape, dtype=np.float32)
        page += noise * source.uniform(1, 9)
    page = page.clip(0, 255).astype(np.uint8)
    if source.random() < 0.35:
        stream = io.BytesIO()
        Image.fromarray(page).save(stream, "JPEG", quality=source.randint(40, 95))
        page = np.asarray(Image.open(stream))
    return page
