"""Image files to RGB: opened within a pixel limit, read a frame at a time, every mode brought to 8-bit RGB."""

from __future__ import annotations

import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..errors import PageError

DEFAULT_MAX_PIXELS = 178_956_970
"""Largest page in pixels, Pillow's own bound: about 13,400 x 13,400, half a gigabyte once decoded."""

MIN_SIDE = 8
"""Shortest side in pixels: no letter is legible in less."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".tif", ".tiff", ".webp", ".gif", ".bmp", ".pbm", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "TIFF", "WEBP", "GIF", "BMP", "PPM")  # no format that starts other programs (EPS)
_SUPPORTED = "PNG, JPEG, TIFF, WebP, GIF, BMP, PNM or PDF"
_BITS_PER_SAMPLE, _PHOTOMETRIC, _SUBFILE_TYPE = 258, 262, 254
_REDUCED, _MASK = 1, 4  # bits of a TIFF frame's subfile type: a thumbnail, a transparency mask

_pillow_limit = threading.Lock()


class ImageDocument:
    """An image file: its pages are a TIFF's frames, or the one image (of an animation, the first frame).

    count: pages that can be read. error: what is wrong beyond them, or None. notes: what the user should know.
    Raises PageError where the file is not an image at all or holds none.
    """

    def __init__(self, path: Path, max_pixels: int = DEFAULT_MAX_PIXELS):
        self.notes: tuple[str, ...] = ()
        self.error: PageError | None = None
        self._path, self._max_pixels = path, max_pixels
        self._file = open_file(path)
        try:
            self._image = self._open()
            self._frames = self._list_frames()
        except BaseException:
            self._file.close()
            raise
        self.count = len(self._frames)

    def read(self, index: int) -> Image.Image:
        """Page `index` (from 0) as 8-bit RGB, upright. Raises PageError where it is damaged or out of bounds."""
        name = str(self._path) if self.count == 1 else f"{self._path}, page {index + 1}"
        try:
            with _quiet():
                if self._image.format == "TIFF":
                    self._image.seek(self._frames[index])
        except Exception as error:
            raise _damaged(name, error) from None
        return to_rgb(self._image, name, self._max_pixels)

    def close(self) -> None:
        self._image.close()
        self._file.close()

    def _open(self) -> Image.Image:
        try:
            with _without_pillow_limit(), _quiet():
                return Image.open(self._file, formats=_FORMATS)
        except Image.UnidentifiedImageError:
            raise PageError(f"{self._path} is not an image that can be read: give {_SUPPORTED}") from None
        except Exception as error:
            raise _damaged(str(self._path), error) from None

    def _list_frames(self) -> list[int]:
        if self._image.format != "TIFF":
            # A JPEG from a phone may carry a second picture (depth, gain map): that is no animation and no page.
            if self._image.format != "MPO" and getattr(self._image, "is_animated", False):
                frames = getattr(self._image, "n_frames", 0)
                self.notes = (f"{self._path} is an animation of {frames} frames: only the first is read",)
            return [0]
        frames, frame = [], 0
        try:
            with _quiet():
                while True:
                    self._image.seek(frame)
                    kind = self._image.tag_v2.get(_SUBFILE_TYPE, 0)
                    if frame == 0 or not kind & (_REDUCED | _MASK):
                        frames.append(frame)
                    frame += 1
        except EOFError:
            pass  # the regular end
        except Exception as error:
            if not frames:
                raise _damaged(str(self._path), error) from None
            self.error = _damaged(f"{self._path}, after page {len(frames)},", error)
        return frames


def open_file(path: Path):
    """`path` opened for reading bytes, not empty. Raises PageError in one sentence where that fails."""
    try:
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):  # opening a FIFO waits for its writer, perhaps for ever
            raise PageError(f"{path} is a pipe, socket or device, not a file: save the page in a file and give that")
        file = path.open("rb")
    except FileNotFoundError:
        raise PageError(f"{path} does not exist: check the name") from None
    except IsADirectoryError:
        raise PageError(f"{path} is a folder, not a page: give one of its files") from None
    except PermissionError:
        raise PageError(f"{path} may not be read: permission denied") from None
    except OSError as error:
        raise PageError(f"{path} cannot be opened: {error.strerror or error}") from None
    try:
        empty = not file.read(1)
        file.seek(0)
    except OSError as error:
        file.close()
        raise PageError(f"{path} cannot be read: {error.strerror or error}") from None
    if empty:
        file.close()
        raise PageError(f"{path} is empty (0 bytes): copy or scan it again")
    return file


def check_size(
    width: int,
    height: int,
    name: str,
    max_pixels: int,
    enlarge: str = "scan it at a higher resolution",
    shrink: str = "make it smaller",
) -> None:
    """Raise PageError where a page is too small to hold a letter, or larger than `max_pixels`.

    enlarge, shrink: the way out of each, the latter said before the option that raises the limit.
    """
    if min(width, height) < MIN_SIDE:
        raise PageError(
            f"{name} is {width:,} x {height:,} pixels; a page needs at least {MIN_SIDE} pixels on each side: {enlarge}"
        )
    if width * height > max_pixels:
        raise PageError(
            f"{name} is {width:,} x {height:,} = {width * height:,} pixels and the limit is {max_pixels:,}: "
            f"{shrink}, or raise the limit with --max-pixels if you trust the file"
        )


def to_rgb(image: Image.Image, name: str = "the image", max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """A new 8-bit RGB image of the frame that `image` stands at; `image` stays as it is.

    The size is checked before anything is decoded. EXIF orientation is applied; transparency lies over white;
    16-bit grey keeps its range (65,535 is white; in a TIFF of fewer bits, their own maximum); 32-bit grey, which
    has no range of its own, is stretched from its minimum to its maximum; CMYK is taken as Pillow gives it.
    Raises PageError where the image is damaged, too small or larger than `max_pixels`.
    """
    check_size(*image.size, name, max_pixels)
    try:
        with _quiet(), _without_pillow_limit() if max_pixels > DEFAULT_MAX_PIXELS else nullcontext():
            image.load()
            return _upright(_flatten(image), image)
    except MemoryError:
        raise PageError(
            f"{name} is {image.width:,} x {image.height:,} pixels, more than fits in memory: make it smaller"
        ) from None
    except Exception as error:
        raise _damaged(name, error) from None


def _flatten(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return image.copy()
    if mode.startswith("I;16"):
        return _grey16(image)
    if mode == "I" and image.format == "PNG":  # how some versions of Pillow give 16-bit grey
        return _grey(np.clip(np.asarray(image), 0, 65535) * (255 / 65535))
    if mode in ("I", "F"):
        return _grey(_stretch(np.asarray(image, np.float64)))
    if mode == "LAB":
        return _lab(image)
    if mode == "La":
        image = image.convert("LA")
    if "A" in image.getbands() or "a" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _grey16(image: Image.Image) -> Image.Image:
    bits, inverted = 16, False
    if image.format == "TIFF":
        bits = image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0]
        inverted = image.tag_v2.get(_PHOTOMETRIC) == 0  # white is zero; Pillow minds that for 8 bits only
    white = (1 << bits) - 1
    grey = np.minimum(np.asarray(image, np.uint16), white)
    return _grey((white - grey if inverted else grey) * np.float32(255 / white))


def _stretch(values: np.ndarray) -> np.ndarray:
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    if low == high:
        return np.full_like(values, 255)
    return np.where(finite, (values - low) * (255 / (high - low)), 0)


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).astype(np.uint8)).convert("RGB")


def _lab(image: Image.Image) -> Image.Image:
    from PIL import ImageCms  # needs littlecms, which some builds of Pillow lack; few pages are LAB

    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    return ImageCms.profileToProfile(image, lab, srgb, outputMode="RGB")


def _upright(rgb: Image.Image, source: Image.Image) -> Image.Image:
    """`rgb` turned as the EXIF orientation of `source` says; orientation that cannot be read is none.

    Loading a TIFF has turned it already, and taken its orientation out.
    """
    try:
        orientation = source.getexif().get(0x0112, 1)
    except Exception:
        return rgb
    if orientation not in range(2, 9):
        return rgb
    rgb.getexif()[0x0112] = orientation
    return ImageOps.exif_transpose(rgb)


def _damaged(name: str, error: Exception) -> PageError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return PageError(f"{name} is damaged or cut short ({reason}): copy or scan it again")


@contextmanager
def _without_pillow_limit() -> Iterator[None]:
    """Pillow's own pixel limit off: ours is checked before decoding, names the option, and can be raised."""
    with _pillow_limit:
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Pillow's warnings about odd metadata, which a reader of pages can do nothing about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
