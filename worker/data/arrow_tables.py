"""Parquet and Arrow files: their parts, and the rows of a part as plain Python values."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from trainyard.contract.formats.records import without_nulls
from worker.core.errors import RefusedError
from worker.data.data_files import CHUNK_BYTES, Chunk, DataFile, opened

_ROWS = 256
"""Rows that are converted to Python values at once."""
_PACKAGES = "Install what `pip install 'trainyard[data]'` does where the workers run."
_JSON = "arrow.json"
"""The type of JSON in a column of text, such as `datasets` writes for objects with different fields."""

Decode = Callable[[Any], Any]


def table_chunks(file: DataFile) -> list[Chunk]:
    """Return the parts of a Parquet or Arrow file, in their order.

    Raises:
        RefusedError: It is no such file, or pyarrow is not installed.
    """
    with opened(file) as handle, _translated(file):
        sizes = _parquet_sizes(handle) if file.kind == "parquet" else _arrow_sizes(handle)
    chunks: list[Chunk] = []
    start = first_row = rows = size = 0
    for index, (count, bytes_) in enumerate(sizes):
        rows, size = rows + count, size + bytes_
        if size >= CHUNK_BYTES or index == len(sizes) - 1:
            chunks.append(Chunk(file, start, index + 1, first_row))
            start, first_row, rows, size = index + 1, first_row + rows, 0, 0
    return chunks


def table_rows(chunk: Chunk, columns: frozenset[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number, from 1, and the values of each row; columns that no format reads are left out.

    Raises:
        RefusedError: The file changed or is damaged.
    """
    number = chunk.first_row
    with opened(chunk.file) as handle, _translated(chunk.file):
        read = _parquet_batches if chunk.file.kind == "parquet" else _arrow_batches
        for batch in read(handle, chunk, columns):
            decoders = {field.name: decode for field in batch.schema if (decode := _json_decoder(field))}
            for start in range(0, batch.num_rows, _ROWS):
                for row in batch.slice(start, _ROWS).to_pylist():
                    number += 1
                    # A table has every field of a structure in each row, with null where the record had none.
                    fields = {name: without_nulls(value) for name, value in row.items()}
                    yield number, _decoded_fields(fields, decoders)


def class_names(file: DataFile, column: str) -> tuple[str, ...]:
    """Return the names that `datasets` has recorded for the numbers of a column; empty if there are none.

    Raises:
        RefusedError: The file changed, is no such file, or pyarrow is not installed.
    """
    try:
        feature = json.loads(_schema_metadata(file)[b"huggingface"])["info"]["features"][column]
        names = feature["names"] if feature["_type"] == "ClassLabel" else ()
    except (KeyError, TypeError, ValueError, RecursionError):
        return ()
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def column_names(file: DataFile) -> list[str]:
    """Return the names of the columns of a table; none of another file.

    Raises:
        RefusedError: The file changed, is no such file, or pyarrow is not installed.
    """
    schema = _schema(file)
    return [] if schema is None else list(schema.names)


def _schema_metadata(file: DataFile) -> dict[bytes, bytes]:
    """Return the metadata that the writer of a file stored about its columns."""
    return dict(getattr(_schema(file), "metadata", None) or {})


def _schema(file: DataFile) -> Any:
    """Return the schema of a table; None for other kinds of files, and for a table without batches."""
    if file.kind not in ("parquet", "arrow"):
        return None
    with opened(file) as handle, _translated(file):
        if file.kind == "arrow":
            return next((batch.schema for batch in _record_batches(handle)), None)
        import pyarrow.parquet as pq

        return pq.ParquetFile(_mapped(handle)).schema_arrow


def _json_decoder(field: Any) -> Decode | None:
    """Return a decoder for the JSON in the values of a column; None if its type holds no JSON."""
    import pyarrow as pa

    kind, stated = field.type, (field.metadata or {}).get(b"ARROW:extension:name", b"")
    if getattr(kind, "extension_name", stated.decode(errors="replace")) == _JSON:
        return _decoded
    if pa.types.is_struct(kind):
        inside = {one.name: decode for one in kind if (decode := _json_decoder(one))}
        return (lambda value: _decoded_fields(value, inside)) if inside else None
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        each = _json_decoder(kind.value_field)
        return (lambda values: values and [each(value) for value in values]) if each else None
    return None


def _decoded_fields(value: Any, decoders: dict[str, Decode]) -> Any:
    return value and value | {name: decode(value[name]) for name, decode in decoders.items() if name in value}


def _decoded(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        # The parser of the record's format reports the error.
        return value


def _parquet_sizes(handle: BinaryIO) -> list[tuple[int, int]]:
    import pyarrow.parquet as pq

    metadata = pq.ParquetFile(_mapped(handle)).metadata
    groups = (metadata.row_group(index) for index in range(metadata.num_row_groups))
    return [(group.num_rows, group.total_byte_size) for group in groups]


def _parquet_batches(handle: BinaryIO, chunk: Chunk, columns: frozenset[str]) -> Iterator[Any]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(_mapped(handle), pre_buffer=False)
    present = [name for name in file.schema_arrow.names if name in columns]
    if not present:
        raise _without_columns(chunk.file, file.schema_arrow.names)
    groups = list(range(chunk.start, chunk.stop))
    yield from file.iter_batches(_ROWS, row_groups=groups, columns=present, use_threads=False)


def _arrow_sizes(handle: BinaryIO) -> list[tuple[int, int]]:
    return [(batch.num_rows, batch.nbytes) for batch in _record_batches(handle)]


def _arrow_batches(handle: BinaryIO, chunk: Chunk, columns: frozenset[str]) -> Iterator[Any]:
    for index, batch in enumerate(_record_batches(handle)):
        if index >= chunk.stop:
            break
        if index >= chunk.start:
            present = [name for name in batch.schema.names if name in columns]
            if not present:
                raise _without_columns(chunk.file, batch.schema.names)
            yield batch.select(present)


def _record_batches(handle: BinaryIO) -> Iterator[Any]:
    """Yield the record batches of an IPC file or stream; their values stay in the mapped file until they are used."""
    import pyarrow as pa

    mapped = _mapped(handle)
    if mapped.read(6) == b"ARROW1":
        reader = pa.ipc.open_file(mapped)
        yield from (reader.get_batch(index) for index in range(reader.num_record_batches))
        return
    mapped.seek(0)
    yield from pa.ipc.open_stream(mapped)


def _mapped(handle: BinaryIO) -> Any:
    import pyarrow as pa

    # The path of the open file, which has been checked.
    return pa.memory_map(f"/proc/self/fd/{handle.fileno()}")


def _without_columns(file: DataFile, names: list[str]) -> RefusedError:
    shown = ", ".join(f"`{name}`" for name in names[:20])
    return file.refuse(f"has none of the columns of the known formats; it has {shown}", "Name them in data.columns.")


@contextmanager
def _translated(file: DataFile) -> Iterator[None]:
    """Translate the errors of pyarrow."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise file.refuse(f"needs pyarrow: {error}", _PACKAGES) from None
    try:
        yield
    except (pa.ArrowException, pa.ArrowInvalid, OSError) as error:
        text = str(error).strip().split("\n")[0]
        name = "a Parquet file" if file.kind == "parquet" else "an Arrow file or stream"
        hint = "Set source to the kind of the file, or write the file again if it is damaged."
        raise file.refuse(f"is not {name} that can be read: {text}", hint) from None
