"""Characters, special tokens and their ids: those of the tokenizer in fastocr_trt/demo."""

from __future__ import annotations

CHARACTERS = [*map(chr, range(32, 127)), "\n"]
ID = {character: number for number, character in enumerate(CHARACTERS)}
NEWLINE = ID["\n"]
BLANK = len(CHARACTERS)  # class of a place without a character, in the auxiliary head only

PADDING, _START, END, VISION_START, VISION_END, _VISION_PAD, IMAGE, VIDEO = range(96, 104)
VOCABULARY = 128

PROMPT = [ID[character] for character in "OCR:\n"]
