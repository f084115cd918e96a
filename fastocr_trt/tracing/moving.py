"""The gaze going over the page, as an animated GIF."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ..errors import FastOCRError
from ..runtime.provenance import Gaze
from ..runtime.trace import Trace
from .heat import grids, paint, stack
from .legend import WRITTEN_ITEM, with_legend

MOST_FRAMES = 160
MOST_PIXELS = 1_000_000  # of a frame; a larger page is shown smaller
FRAME_MS = 90
LAST_MS = 1500
_TRAIL = 0.6  # what is left of the last frame's heat
_CAPTION = 26
_COLOURS = 96
_TEXT = (20, 20, 20)


def moving_gaze(trace: Trace) -> bytes:
    """A GIF: where the model looks, with a trail, and what it has just written below.

    At most 160 frames: of a longer text a frame shows several tokens. FastOCRError for a trace without tokens.
    """
    tokens = len(trace.token_ids)
    if not tokens:
        raise FastOCRError("the trace has no tokens, so nothing moves; draw it as .html or .png")
    gaze = Gaze(trace)
    plain = stack(list(trace.pictures))
    scale = min(1.0, (MOST_PIXELS / (plain.width * plain.height)) ** 0.5)
    pictures = [p.resize((max(1, round(p.width * scale)), max(1, round(p.height * scale)))) for p in trace.pictures]
    edges = np.unique(np.linspace(0, tokens, min(tokens, MOST_FRAMES) + 1).round().astype(int))
    heat = np.zeros(trace.visual_tokens)
    frames = []
    for first, last in pairwise(edges):
        heat = np.maximum(heat * _TRAIL, gaze.mass(np.arange(first, last)).max(0))
        shown = stack([paint(p, g) for p, g in zip(pictures, grids(trace, heat), strict=True)])
        written = trace.text[: int(trace.spans[last - 1, 1])]
        frames.append(with_legend(_captioned(shown, written), (WRITTEN_ITEM,)))
    # One palette for all frames, from a picture that has every colour in it: palettes of their own would flicker.
    ramp = np.linspace(0, 1, 16)[None]
    dark = Image.new("RGB", (plain.width, _CAPTION), _TEXT)
    palette = stack([*(paint(p, ramp) for p in pictures), frames[-1], dark]).quantize(_COLOURS)
    indexed = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    stream = io.BytesIO()
    durations = [FRAME_MS] * (len(indexed) - 1) + [LAST_MS]
    indexed[0].save(stream, "GIF", save_all=True, append_images=indexed[1:], duration=durations, loop=0)
    return stream.getvalue()


def _captioned(picture: Image.Image, written: str) -> Image.Image:
    """The end of the text's last line below the picture, as much of it as fits."""
    frame = Image.new("RGB", (picture.width, picture.height + _CAPTION), "white")
    frame.paste(picture, (0, 0))
    pen, font = ImageDraw.Draw(frame), ImageFont.load_default(16)
    line = written.rstrip("\n").rsplit("\n", 1)[-1][-200:]
    while line and pen.textlength(line, font) > picture.width - 12:
        line = line[1:]
    pen.text((6, picture.height + 4), line, fill=_TEXT, font=font)
    return frame
