"""Forms with a file (multipart/form-data), read while they arrive: the file is never whole in memory."""

from collections.abc import Callable
from typing import Protocol

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from service.core.errors import InvalidRequestError, MalformedRequestError

FORM_OVERHEAD = 64 * 1024
"""Bytes that a form may have beside its file."""
_MAX_FIELD_BYTES = 4096
_MAX_FIELDS = 32


class FileSink(Protocol):
    """Receives the file of a form."""

    def add(self, chunk: bytes) -> None: ...


class FormReader:
    """Reads a form in chunks: the content of `file` goes to a sink, and all other fields are kept as text.

    Attributes:
        fields: The other fields by name.
        file_name: The name of the file; None before it begins.
    """

    def __init__(self, content_type: str | None, open_sink: Callable[[], FileSink]) -> None:
        """
        Raises:
            MalformedRequestError: The content type does not belong to a form.
        """
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 0 < len(boundary) <= 70:
            message = "send a form (multipart/form-data) with the file in the field `file`"
            raise MalformedRequestError(message, code="not_a_form")
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        self._open_sink = open_sink
        self._sink: FileSink | None = None
        self._in_file = False
        self._field = ""
        self._value = bytearray()
        self._header, self._header_value = bytearray(), bytearray()
        self._disposition = b""
        self._ended = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin_part,
                "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
                "on_header_end": self._end_header,
                "on_headers_finished": self._open_part,
                "on_part_data": self._add,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> None:
        """Parse received bytes.

        Raises:
            MalformedRequestError: They are not part of a form, or a field is too long.
            InvalidRequestError: There is a second file.
        """
        try:
            self._parser.write(chunk)
        except MultipartParseError:
            raise MalformedRequestError("the body is not a valid form", code="invalid_form") from None

    def finish(self) -> str:
        """Return the name of the file.

        Raises:
            MalformedRequestError: The form ends early.
            InvalidRequestError: It has no file.
        """
        if not self._ended:
            raise MalformedRequestError("the form ends before its last boundary", code="invalid_form")
        if self.file_name is None:
            raise InvalidRequestError("is missing: send the file in the form's field `file`", param="file")
        return self.file_name

    def _begin_part(self) -> None:
        self._disposition = b""
        self._in_file = False
        self._value.clear()

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._header_value)
        self._header.clear()
        self._header_value.clear()

    def _open_part(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._field = options.get(b"name", b"").decode(errors="replace")
        if self._field != "file":
            return
        if self._sink is not None:
            raise InvalidRequestError("is given twice; send one file a request", param="file")
        self._in_file = True
        self.file_name = options.get(b"filename", b"").decode(errors="replace") or "file.jsonl"
        self._sink = self._open_sink()

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            assert self._sink is not None
            self._sink.add(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > _MAX_FIELD_BYTES:
            raise MalformedRequestError(f"a field of the form is longer than {_MAX_FIELD_BYTES} bytes")

    def _end_part(self) -> None:
        if self._in_file:
            return
        self.fields[self._field] = self._value.decode(errors="replace")
        if len(self.fields) > _MAX_FIELDS:
            raise MalformedRequestError(f"the form has more than {_MAX_FIELDS} fields")

    def _end(self) -> None:
        self._ended = True
