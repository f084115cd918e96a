"""Every kind of image file to upright 8-bit RGB, and refusals before anything is decoded."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from fastocr_trt.errors import PageError
from fastocr_trt.runtime.documents import iter_pages, load_image
from fastocr_trt.runtime.images import MIN_SIDE, to_rgb

LEVELS = np.tile(np.array([0, 51, 102, 255], np.uint8).repeat(4), (12, 1))  # 12 x 16, four stripes of 4


def stripes(image: Image.Image) -> list[tuple[int, ...]]:
    """The colour of each stripe."""
    assert image.mode == "RGB"
    return [image.getpixel((4 * i + 1, 5)) for i in range(4)]


def grey(*levels: int) -> list[tuple[int, int, int]]:
    return [(level,) * 3 for level in levels]


@pytest.mark.parametrize("kind", ["png", "tif"])
def test_16_bit_grey_keeps_its_range(tmp_path, kind):
    Image.fromarray(LEVELS.astype(np.uint16) * 257).save(tmp_path / f"a.{kind}")
    assert stripes(load_image(tmp_path / f"a.{kind}")) == grey(0, 51, 102, 255)


def test_16_bit_tiff_where_white_is_zero(tmp_path):
    info = TiffImagePlugin.ImageFileDirectory_v2()
    info[262] = 0
    Image.fromarray(LEVELS.astype(np.uint16) * 257).save(tmp_path / "a.tif", tiffinfo=info)
    with Image.open(tmp_path / "a.tif") as saved:
        assert saved.tag_v2[262] == 0, "the file is not what this test is about"
    assert stripes(load_image(tmp_path / "a.tif")) == grey(255, 204, 153, 0)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_32_bit_grey_is_stretched(dtype):
    values = LEVELS.astype(dtype) * 1000 - 7000
    assert stripes(load_image(Image.fromarray(values))) == grey(0, 51, 102, 255)


def test_float_grey_with_holes():
    values = LEVELS.astype(np.float32) / 255
    values[0, 0], values[0, 1] = np.nan, np.inf
    assert stripes(load_image(Image.fromarray(values))) == grey(0, 51, 102, 255)
    blank = load_image(Image.fromarray(np.full((10, 16), 3.0, np.float32)))
    assert stripes(blank) == grey(255, 255, 255, 255)


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
@pytest.mark.parametrize("kind", ["png", "tif"])
def test_transparency_lies_over_white(tmp_path, mode, kind):
    black = Image.new("L", (16, 12), 0)
    image = Image.merge(mode, [*[black] * (len(mode) - 1), Image.fromarray(LEVELS)])
    image.save(tmp_path / f"a.{kind}")
    assert stripes(load_image(tmp_path / f"a.{kind}")) == grey(255, 204, 153, 0)


@pytest.mark.parametrize("mode", ["La", "RGBa"])
def test_premultiplied_transparency(mode):
    full = "LA" if mode == "La" else "RGBA"
    black = Image.new("L", (16, 12), 0)
    image = Image.merge(full, [*[black] * (len(full) - 1), Image.fromarray(LEVELS)]).convert(mode)
    assert stripes(load_image(image)) == grey(255, 204, 153, 0)


def test_palette_with_and_without_transparency(tmp_path):
    image = Image.fromarray((LEVELS // 51 % 5).astype(np.uint8)).convert("P")
    image.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200] + [9] * 753)
    image.save(tmp_path / "a.png")
    assert stripes(load_image(tmp_path / "a.png"))[:3] == [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    image.save(tmp_path / "b.png", transparency=1)
    assert stripes(load_image(tmp_path / "b.png"))[:3] == [(200, 0, 0), (255, 255, 255), (0, 0, 200)]


def test_rgb_and_grey_with_a_transparent_colour(tmp_path):
    Image.fromarray(LEVELS).save(tmp_path / "l.png", transparency=51)
    assert stripes(load_image(tmp_path / "l.png")) == grey(0, 255, 102, 255)
    Image.fromarray(LEVELS).convert("RGB").save(tmp_path / "rgb.png", transparency=(51, 51, 51))
    assert stripes(load_image(tmp_path / "rgb.png")) == grey(0, 255, 102, 255)


def test_one_bit(tmp_path):
    Image.fromarray(LEVELS).point(lambda v: 255 * (v > 60)).convert("1").save(tmp_path / "a.tif", compression="group4")
    assert stripes(load_image(tmp_path / "a.tif")) == grey(0, 0, 255, 255)


@pytest.mark.parametrize("kind", ["jpg", "tif"])
def test_cmyk(tmp_path, kind):
    image = Image.merge("CMYK", [Image.fromarray(LEVELS), *[Image.new("L", (16, 12), 0)] * 3])
    image.save(tmp_path / f"a.{kind}", **({"quality": 100} if kind == "jpg" else {}))
    red = [colour[0] for colour in stripes(load_image(tmp_path / f"a.{kind}"))]
    assert red == pytest.approx([255, 204, 153, 0], abs=6)


def test_lab(tmp_path):
    lab = Image.merge("LAB", [Image.fromarray(LEVELS), *[Image.new("L", (16, 12), 128)] * 2])
    lab.save(tmp_path / "a.tif")
    colours = np.array(stripes(load_image(tmp_path / "a.tif")))
    assert (np.ptp(colours, axis=1) <= 3).all(), "neutral Lab is grey"
    assert colours[0, 0] < 5 and colours[3, 0] > 250 and (np.diff(colours[:, 0]) > 20).all()


@pytest.mark.parametrize("mode", ["HSV", "YCbCr", "RGBX"])
def test_other_modes(mode):
    image = Image.fromarray(LEVELS).convert("RGB").convert(mode)
    assert np.allclose(stripes(load_image(image)), grey(0, 51, 102, 255), atol=1)


@pytest.mark.parametrize("kind", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation(tmp_path, kind, orientation):
    upright = Image.new("RGB", (48, 32), "white")
    upright.paste("black", (0, 0, 16, 16))  # the upper left corner says which way is up
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright if orientation == 1 else upright.transpose(undo[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / f"a.{kind}", exif=exif)
    image = load_image(tmp_path / f"a.{kind}")
    assert image.size == (48, 32)
    assert image.getpixel((4, 4))[0] < 40 and image.getpixel((44, 4))[0] > 215 and image.getpixel((4, 28))[0] > 215
    again = load_image(image)
    assert again.size == image.size and again.tobytes() == image.tobytes(), "turned once, not at every load"


def test_orientation_that_is_no_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 77
    Image.new("RGB", (48, 32)).save(tmp_path / "a.png", exif=exif)
    assert load_image(tmp_path / "a.png").size == (48, 32)


@pytest.mark.parametrize("kind", ["webp", "gif", "png"])
def test_animation_gives_its_first_frame_and_says_so(tmp_path, kind):
    frames = [Image.new("RGB", (16, 12), colour) for colour in ("black", "white", "gray")]
    path = tmp_path / f"a.{kind}"
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=50)
    (page,) = iter_pages(path)
    assert page.image.getpixel((5, 5)) == pytest.approx((0, 0, 0), abs=2)
    assert len(page.notes) == 1 and "3 frames" in page.notes[0]


def test_second_picture_of_a_phone_photo_is_no_page(tmp_path):
    first, second = Image.new("RGB", (16, 12), "black"), Image.new("RGB", (16, 12), "white")
    first.save(tmp_path / "a.jpg", "MPO", save_all=True, append_images=[second])
    (page,) = iter_pages(tmp_path / "a.jpg")
    assert page.image.getpixel((5, 5)) == (0, 0, 0) and page.notes == ()


def test_thumbnails_in_a_tiff_are_no_pages(tmp_path):
    thumbnail = TiffImagePlugin.ImageFileDirectory_v2()
    thumbnail[254] = 1
    with TiffImagePlugin.AppendingTiffWriter(str(tmp_path / "a.tif"), True) as file:
        for level, info in [(10, {}), (20, thumbnail), (30, {})]:
            Image.new("L", (16, 12), level).save(file, "TIFF", tiffinfo=info)
            file.newFrame()
    pages = list(iter_pages(tmp_path / "a.tif"))
    assert [page.image.getpixel((0, 0))[0] for page in pages] == [10, 30]


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "jpeg", "tiff_adobe_deflate"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_tiff_gives_what_is_whole(tmp_path, compression, share):
    noise = np.random.default_rng(0).integers(0, 256, (4, 60, 50, 3), np.uint8)
    first, *rest = [Image.fromarray(frame) for frame in noise]
    first.save(tmp_path / "a.tif", save_all=True, append_images=rest, compression=compression)
    data = (tmp_path / "a.tif").read_bytes()
    (tmp_path / "b.tif").write_bytes(data[: int(len(data) * share)])
    whole, cut = list(iter_pages(tmp_path / "a.tif")), list(iter_pages(tmp_path / "b.tif"))
    read = [page for page in cut if page.error is None]
    assert 1 <= len(read) < 4 and len(read) == int(share * 4)
    for page, same in zip(read, whole, strict=False):
        assert page.image.tobytes() == same.image.tobytes()
    assert all("damaged or cut short" in str(page.error) for page in cut[len(read) :]) and len(cut) > len(read)


@pytest.mark.parametrize("kind", ["png", "jpg", "webp", "gif", "bmp", "tif"])
def test_truncated_anywhere_is_an_error_or_a_page(tmp_path, kind):
    noise = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / f"a.{kind}")
    data = (tmp_path / f"a.{kind}").read_bytes()
    for size in [1, 8, 20, len(data) // 4, len(data) // 2]:
        (tmp_path / f"b.{kind}").write_bytes(data[:size])
        with pytest.raises(PageError) as caught:
            load_image(tmp_path / f"b.{kind}")
        assert str(tmp_path / f"b.{kind}") in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_bytes_never_escape_as_another_error(tmp_path):
    rng = np.random.default_rng(2)
    buffers = {}
    for kind in ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"]:
        buffers[kind] = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(buffers[kind], kind)
    refused = 0
    for kind, buffer in buffers.items():
        for _ in range(15):
            data = bytearray(buffer.getvalue())
            for place in rng.integers(0, min(len(data), 400), 6):
                data[place] = rng.integers(256)
            path = tmp_path / f"a.{kind.lower()}"
            path.write_bytes(data)
            for page in iter_pages(path, max_pixels=10_000_000):
                refused += page.error is not None
    assert refused > 10


@pytest.mark.parametrize("size", [(1, 1), (1, 1000), (1000, MIN_SIDE - 1)])
def test_too_small(size):
    with pytest.raises(PageError, match=rf"{size[0]:,} x {size[1]:,} pixels.* at least {MIN_SIDE} pixels"):
        to_rgb(Image.new("L", size))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few dozen bytes that says it is `width` x `height`."""

    def block(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", head) + block(b"IDAT", zlib.compress(b"\0" * 64)) + block(b"IEND", b"")


def test_decompression_bomb_is_refused_before_decoding(tmp_path, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded before the check"))
    (tmp_path / "a.png").write_bytes(bomb(35_000, 35_000))
    with pytest.raises(PageError, match=r"1,225,000,000 pixels and the limit is 178,956,970.*--max-pixels"):
        load_image(tmp_path / "a.png")


def test_pixel_limit_can_be_lowered_and_raised(tmp_path, monkeypatch):
    Image.new("L", (100, 50)).save(tmp_path / "a.png")
    with pytest.raises(PageError, match=r"5,000 pixels and the limit is 4,999"):
        load_image(tmp_path / "a.png", max_pixels=4_999)
    assert load_image(tmp_path / "a.png", max_pixels=5_000).size == (100, 50)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow's limit, were it in force, would refuse this page
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image(tmp_path / "a.png").size == (100, 50)
    assert Image.MAX_IMAGE_PIXELS == 100, "the application's setting is put back"


def test_source_image_is_left_alone():
    image = Image.new("RGB", (16, 12), "white")
    rgb = to_rgb(image)
    rgb.putpixel((0, 0), (1, 2, 3))
    assert image.getpixel((0, 0)) == (255, 255, 255)
