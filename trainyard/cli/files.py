"""`trainyard files`: upload data files, and list, download and delete them."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from trainyard.cli.arguments import JsonOption, OverwriteOption, make_client
from trainyard.cli.checkpoints import progress_bars, translate_write_errors
from trainyard.cli.completion import complete_file
from trainyard.cli.confirm import confirm_deletion
from trainyard.cli.errors import UsageError, show_help
from trainyard.cli.output import (
    escape_name,
    format_age,
    print_deleted,
    print_error,
    print_json,
    print_json_lines,
    print_line,
    print_list,
)
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.data_files import DataFileResource, FileFormat

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)

FileArgument = Annotated[
    str, typer.Argument(metavar="ID", autocompletion=complete_file, help="Id from `trainyard files list`: file_...")
]
_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)


@app.command("upload")
def upload(
    ctx: typer.Context,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSONL files.")],
    name: Annotated[
        str | None, typer.Option(help="Name in lists, for a single file; default: that of the file.")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help=f"Format of all lines: {', '.join(_FORMATS)}; default: detected."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Upload JSONL files and print their ids. After an interruption, the same command continues.

    The service checks every line. A spec names the file as `data: {source: file, id: ID}`.

    Example: trainyard files upload chat.jsonl
    """
    if name is not None and len(files) > 1:
        raise UsageError("--name is for a single file")
    known = next((one for one in _FORMATS if one == format), None)
    if format is not None and known is None:
        raise UsageError(f"--format {format!r} is none of {', '.join(_FORMATS)}")
    made: list[DataFileResource] = []
    with make_client(ctx) as client:
        for file in files:
            with progress_bars(quiet=as_json) as report_bytes:
                made.append(client.upload_file(file, name=name, format=known, progress=report_bytes))
            if not as_json:
                print_error(f"{made[-1].examples} examples in the format {made[-1].format}")
                print_line(made[-1].id)
    if as_json:
        print_json_lines(made)


@app.command("list")
def list_files(
    ctx: typer.Context,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Only files of this user.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List data files, newest first.

    Example: trainyard files list
    """
    with make_client(ctx) as client:
        listed = list(client.data_files(created_by=user))
    headings = ("ID", "NAME", "FORMAT", "EXAMPLES", "SIZE", "USER", "UPLOADED")
    print_list(listed, headings, _row, as_json=as_json, empty_message="no data files")


def _row(file: DataFileResource) -> tuple[str, ...]:
    size, age = format_size(file.size_bytes), format_age(file.created_at)
    return file.id, escape_name(file.name), file.format, str(file.examples), size, file.created_by, age


@app.command("show")
def show(ctx: typer.Context, file_id: FileArgument, as_json: JsonOption = False) -> None:
    """Show a data file.

    Example: trainyard files show file_01kdvdna00yhj80arqj5k8gms6
    """
    with make_client(ctx) as client:
        file = client.data_file(file_id)
    if as_json:
        print_json(file)
        return
    for label, text in (
        ("id", file.id),
        ("name", escape_name(file.name)),
        ("format", file.format),
        ("examples", str(file.examples)),
        ("size", format_size(file.size_bytes)),
        ("sha256", file.digest.removeprefix("sha256:")),
        ("uploaded", f"{format_age(file.created_at)} by {file.created_by}"),
    ):
        print_line(f"{label:<10}{text}")


@app.command("download")
def download(
    ctx: typer.Context,
    file_id: FileArgument,
    to: Annotated[
        Path | None, typer.Option("--to", "-o", metavar="FILE", help="Target file; default: the file's name.")
    ] = None,
    force: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Download a data file and verify its digest. After an interruption, the same command continues.

    Example: trainyard files download file_01kdvdna00yhj80arqj5k8gms6
    """
    with make_client(ctx) as client:
        target = to or Path(Path(client.data_file(file_id).name).name)
        with translate_write_errors(target), progress_bars(quiet=as_json) as report_bytes:
            client.download_data_file(file_id, target, progress=report_bytes, overwrite=force)
    if as_json:
        print_json({"object": "download", "id": file_id, "file": str(target)})
    else:
        print_line(escape_name(str(target)))


@app.command("delete")
def delete(
    ctx: typer.Context,
    file_ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", autocompletion=complete_file, help="Ids from `trainyard files list`."),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete data files. Jobs that have not ended keep their content.

    Example: trainyard files delete file_01kdvdna00yhj80arqj5k8gms6
    """
    if len(file_ids) > 1 and not yes and not as_json and not confirm_deletion(f"delete {len(file_ids)} files?"):
        return
    with make_client(ctx) as client:
        for file_id in file_ids:
            client.delete_data_file(file_id)
            print_deleted("file", file_id, "deleted", as_json=as_json)
