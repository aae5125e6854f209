"""Reads messages of protocol buffers, field by field, without a schema and without their library."""

import struct
from collections.abc import Iterator

Field = tuple[int, int | bytes]
"""A field's number, and its value: an integer for a varint, else the bytes."""

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
_MAX_VARINT = 10


class MalformedMessageError(ValueError):
    """The bytes are not a message."""


def fields(message: bytes) -> Iterator[Field]:
    """Yield the fields in their order.

    Raises:
        MalformedMessageError: The bytes are no message; fields before the fault have been yielded.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if kind == _EIGHT_BYTES else 4
        else:
            raise MalformedMessageError(f"unknown wire type {kind}")
        if length > end - position:
            raise MalformedMessageError("a field is longer than its message")
        yield number, message[position : position + length]
        position += length


def varints(value: int | bytes) -> list[int]:
    """Return the integers of a repeated field, packed or single."""
    if isinstance(value, int):
        return [value]
    numbers, position = [], 0
    while position < len(value):
        number, position = _varint(value, position)
        numbers.append(number)
    return numbers


def content(value: int | bytes) -> bytes:
    """Return the bytes of a field that must have them."""
    if isinstance(value, int):
        raise MalformedMessageError("a number where bytes must be")
    return value


def text(value: int | bytes) -> str:
    """Return a text, in which each byte that is no UTF-8 is a lone surrogate, so that distinct texts stay distinct."""
    return content(value).decode(errors="surrogateescape")


def unpack(form: str, value: int | bytes) -> float:
    """Return the first number of a field or array of fixed-size numbers.

    Args:
        form: A format of `struct` with one number.
    """
    try:
        number: float = struct.unpack_from(form, content(value))[0]
    except struct.error as error:
        raise MalformedMessageError(str(error)) from None
    return number


def doubles(value: int | bytes) -> list[float]:
    """Return the numbers of a packed field of doubles."""
    packed = content(value)
    if len(packed) % 8:
        raise MalformedMessageError("a packed field ends within a number")
    return [number for (number,) in struct.iter_unpack("<d", packed)]


def signed(value: int | bytes) -> int:
    """Return a varint that stands for a signed 64-bit integer."""
    if isinstance(value, bytes):
        raise MalformedMessageError("bytes where a number must be")
    value &= 0xFFFFFFFFFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for index in range(_MAX_VARINT):
        if position >= len(message):
            raise MalformedMessageError("the message ends within a number")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position
    raise MalformedMessageError("a number is too long")
