"""The faces pages are set in: three families beside this file, and more where free fonts are installed for training.

A page of a seed must be the same everywhere, so layouts of the registry use BUNDLED only. Training mixes in what
`installed_families` finds.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

_HERE = Path(__file__).parent
ROOM = 5  # pixels around a glyph for what overhangs its advance


class Family(NamedTuple):
    """Font files of one family: regular weight, and the bold one that headings use."""

    name: str
    regular: Path
    bold: Path


BUNDLED: tuple[Family, ...] = (
    Family("Lato", _HERE / "Lato-Regular.ttf", _HERE / "Lato-Bold.ttf"),
    Family("Caladea", _HERE / "Caladea-Regular.ttf", _HERE / "Caladea-Bold.ttf"),
    Family("DejaVu Sans Mono", _HERE / "DejaVuSansMono.ttf", _HERE / "DejaVuSansMono.ttf"),
)
"""Sans, serif, mono; licences beside the files."""

# name, module that ships the files, regular, bold
_INSTALLED = (
    ("Roboto", "font_roboto", "files/Roboto-Regular.ttf", "files/Roboto-Bold.ttf"),
    ("Source Sans Pro", "font_source_sans_pro", "files/SourceSansPro-Regular.ttf", "files/SourceSansPro-Bold.ttf"),
    ("Source Serif Pro", "font_source_serif_pro", "files/SourceSerifPro-Regular.ttf", "files/SourceSerifPro-Bold.ttf"),
    ("Hanken Grotesk", "font_hanken_grotesk", "files/HankenGrotesk-Regular.otf", "files/HankenGrotesk-Bold.otf"),
    ("Manrope", "font_manrope", "files/Manrope-Medium.ttf", "files/Manrope-Bold.ttf"),
    ("DejaVu Sans", "matplotlib", "mpl-data/fonts/ttf/DejaVuSans.ttf", "mpl-data/fonts/ttf/DejaVuSans-Bold.ttf"),
    ("DejaVu Serif", "matplotlib", "mpl-data/fonts/ttf/DejaVuSerif.ttf", "mpl-data/fonts/ttf/DejaVuSerif-Bold.ttf"),
    ("STIX", "matplotlib", "mpl-data/fonts/ttf/STIXGeneral.ttf", "mpl-data/fonts/ttf/STIXGeneralBol.ttf"),
)


@cache
def installed_families() -> tuple[Family, ...]:
    """Families that installed packages ship (the `train` extra), in a fixed order; empty where there are none."""
    found = []
    for name, module, regular, bold in _INSTALLED:
        spec = find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            continue
        folder = Path(spec.submodule_search_locations[0])
        if (folder / regular).is_file() and (folder / bold).is_file():
            found.append(Family(name, folder / regular, folder / bold))
    return tuple(found)


class Sheet:
    """One face at one size, a glyph at a time, each rendered once.

    height: pixels of a line, ascent and descent. middle: from the line's top to the middle of a lower-case letter.
    """

    def __init__(self, path: Path, size: int):
        self._font = ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
        self._glyphs: dict[str, np.ndarray] = {}
        self._advances: dict[str, float] = {}
        ascent, descent = self._font.getmetrics()
        self.size = size
        self.height = ascent + descent + 2
        self.middle = ascent - round(size * 0.27)

    def advance(self, character: str) -> float:
        """Pixels to the next character's origin, not rounded."""
        if character not in self._advances:
            self._advances[character] = self._font.getlength(character)
        return self._advances[character]

    def width(self, text: str) -> float:
        """Pixels that `text` takes."""
        return sum(self.advance(character) for character in text)

    def glyph(self, character: str) -> np.ndarray:
        """Coverage 0..255 uint8, [height, advance + 2 * ROOM]; the origin is at column ROOM."""
        if character not in self._glyphs:
            image = Image.new("L", (round(self.advance(character)) + 2 * ROOM, self.height), 0)
            ImageDraw.Draw(image).text((ROOM, 0), character, fill=255, font=self._font)
            self._glyphs[character] = np.asarray(image)
        return self._glyphs[character]


@cache
def sheet(path: Path, size: int) -> Sheet:
    """The sheet of this face and size, shared by all pages."""
    return Sheet(path, size)
