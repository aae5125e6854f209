"""Decodes images of untrusted files into three channels of 8 bits, in the same way wherever a model sees them."""

import io
from contextlib import suppress
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from trainyard.contract.sizes import format_size

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that are decoded; only the first frame of an image is read."""
MAX_PIXELS = 2**26
"""An image with more is not decoded: a small file can state any size."""
MAX_BYTES = 2**26
MAX_RATIO = 200
"""A narrower image is not used: image processors scale the short side up, which takes any amount of memory."""

_ORIENTATION = 0x0112
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""The operation that undoes each orientation of EXIF."""
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_WITHOUT_COLOURS = ("I", "F")


class BadImageError(ValueError):
    """Bytes that hold no image that can be used. The message says why."""


def decode_image(encoded: bytes) -> Image.Image:
    """Return an image of mode RGB: turned as its EXIF data says, transparent parts over white.

    Raises:
        BadImageError: It has another format, is damaged or incomplete, or is too large or too narrow.
    """
    if len(encoded) > MAX_BYTES:
        raise BadImageError(f"has more than {format_size(MAX_BYTES)}")
    if not encoded:
        raise BadImageError("is empty")
    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            _check_pixels(image)
            image.load()
            return to_rgb(image)
    except (BadImageError, MemoryError):
        raise
    except UnidentifiedImageError:
        raise BadImageError(f"is not an image of a known format, which are {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:
        raise BadImageError(_too_large()) from None
    except Exception as error:
        # Pillow raises nearly anything for damaged files.
        text = str(error).strip().split("\n")[0] or type(error).__name__
        raise BadImageError(f"cannot be decoded: {text[:200]}") from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image that Pillow has opened to mode RGB, as `decode_image` does.

    Raises:
        BadImageError: It is too large or too narrow, or has pixels that are no colours.
    """
    _check_pixels(image)
    turn = _TURNS.get(_orientation(image))
    turned = image.transpose(turn) if turn is not None else image
    if turned.mode in _DEEP:
        return Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8)).convert("RGB")
    if turned.mode in _WITHOUT_COLOURS:
        raise BadImageError(f"has pixels of mode {turned.mode}, which are no colours")
    if not turned.has_transparency_data:
        return turned.convert("RGB")
    layer = turned.convert("RGBA")
    below = Image.new("RGBA", layer.size, "white")
    below.alpha_composite(layer)
    return below.convert("RGB")


def _check_pixels(image: Image.Image) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError(_too_large())
    if max(image.size) > MAX_RATIO * min(image.size):
        raise BadImageError(f"is more than {MAX_RATIO} times as long as it is wide")


def _too_large() -> str:
    return f"has more than {MAX_PIXELS:,} pixels"


def _orientation(image: Image.Image) -> Any:
    # Data about a picture may be damaged while the picture is not.
    with suppress(Exception):
        return image.getexif().get(_ORIENTATION)
    return None
