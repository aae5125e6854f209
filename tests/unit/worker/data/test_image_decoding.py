"""Images of untrusted files."""

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from tests.support.images import encoded
from worker.data import image_decoding
from worker.data.image_decoding import BadImageError, decode_image, to_rgb

RED, WHITE = (255, 0, 0), (255, 255, 255)


def colours(image):
    return {colour for _, colour in image.getcolors()}


@pytest.mark.parametrize("format_", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "JPEG"])
def test_each_format_is_decoded_to_three_channels(format_):
    image = decode_image(encoded(Image.new("RGB", (4, 3), RED), format_))
    assert (image.mode, image.size) == ("RGB", (4, 3))
    assert np.abs(np.asarray(image).astype(int) - RED).max() < 8


def test_gray_and_palette_images_get_colours():
    assert colours(decode_image(encoded(Image.new("L", (2, 2), 7)))) == {(7, 7, 7)}
    assert colours(decode_image(encoded(Image.new("RGB", (2, 2), RED).convert("P")))) == {RED}


def test_deep_gray_keeps_its_shades():
    deep = Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], dtype=np.uint16))
    assert np.asarray(decode_image(encoded(deep)))[0, :, 0].tolist() == [0, 128, 255]


def test_transparent_parts_are_white():
    image = Image.new("RGBA", (2, 1), (*RED, 255))
    image.putpixel((1, 0), (0, 0, 0, 0))
    assert colours(decode_image(encoded(image))) == {RED, WHITE}
    palette = Image.new("P", (1, 1), 0)
    palette.putpalette([0, 0, 0])
    assert colours(decode_image(encoded(palette, transparency=0))) == {WHITE}


def test_inks_become_colours():
    jpeg = encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG")
    assert np.abs(np.asarray(decode_image(jpeg)).astype(int) - RED).max() < 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_exif_is_applied(orientation):
    from PIL import ImageOps

    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(image, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert np.array_equal(np.asarray(decode_image(data))[..., 0], np.asarray(expected))


def test_damaged_exif_does_not_prevent_the_image():
    assert colours(decode_image(encoded(Image.new("RGB", (2, 2), RED), exif=b"Exif\0\0nonsense"))) == {RED}


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_of_size(width, height):
    """A few bytes that state any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


WHOLE = encoded(Image.fromarray(np.random.RandomState(0).randint(0, 255, (32, 32, 3), dtype=np.uint8)), "JPEG")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is empty"),
        (b"\x89PNG", "is not an image of a known format"),
        (b"%!PS-Adobe-3.0\n", "is not an image of a known format"),
        (b"P6 1 1 255\n123", "is not an image of a known format"),
        (WHOLE[:-300], "cannot be decoded: .*truncated"),
        (png_of_size(9000, 9000), "more than 67,108,864 pixels"),
        (png_of_size(100_000, 100_000), "more than 67,108,864 pixels"),
        (png_of_size(100, 100), "cannot be decoded"),
        (png_of_size(60_000_000, 1), "more than 200 times as long as it is wide"),
        (png_of_size(1, 201), "more than 200 times as long as it is wide"),
        (encoded(Image.new("F", (2, 2)), "TIFF"), "pixels of mode F"),
    ],
)
def test_what_is_no_usable_image_is_refused_with_the_reason(data, reason):
    with pytest.raises(BadImageError, match=reason):
        decode_image(data)


def test_file_of_too_many_bytes_is_not_decoded(monkeypatch):
    monkeypatch.setattr(image_decoding, "MAX_BYTES", 10)
    with pytest.raises(BadImageError, match="more than 10 B"):
        decode_image(WHOLE)


def test_picture_of_too_many_pixels_is_refused():
    with pytest.raises(BadImageError, match="pixels"):
        to_rgb(Image.new("1", (9000, 9000)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("format_", image_decoding.FORMATS)
def test_damaged_file_is_an_image_or_a_bad_one(format_):
    draws = np.random.RandomState(0)
    whole = encoded(Image.fromarray(draws.randint(0, 255, (16, 16, 3), dtype=np.uint8)), format_)
    for _ in range(150):
        damaged = bytearray(whole[: draws.randint(1, len(whole) + 1)])
        for _ in range(draws.randint(4)):
            damaged[draws.randint(min(64, len(damaged)))] = draws.randint(256)
        with suppress(BadImageError):
            assert decode_image(bytes(damaged)).mode == "RGB"
