"""`export`: makes a model of any checkpoint, on this machine."""

import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from trainyard.cli.arguments import TARGET_NAMES, JsonOption, OverwriteOption, find_job, make_client
from trainyard.cli.checkpoints import find_checkpoint, progress_bars, translate_write_errors
from trainyard.cli.completion import complete_job
from trainyard.cli.conversion import convert
from trainyard.cli.errors import UsageError, print_note
from trainyard.cli.output import escape_name, print_json, print_line
from trainyard.client import Client
from trainyard.client.download import safe_name
from trainyard.client.errors import NotFoundError, TargetExistsError
from trainyard.contract.kinds.tasks import LOOP_TASKS
from trainyard.contract.layout import CheckpointLayout
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.export import ExportDtype, ExportKind, ExportRequest
from trainyard.contract.wire.files import CheckpointResource
from trainyard.contract.wire.jobs import JobResource

_NOTE = "export.json"
"""The description in every export of this command; only such a folder is replaced."""
_ENDS = ("best", "latest")
_CONTENTS: dict[ExportKind, str] = {
    "model": "it holds the whole model",
    "adapter": "it holds the adapters; peft loads them onto the base model, and --merge writes the whole model",
    "trained": "it holds the trained tensors; load them into the base model: load_state_dict(..., strict=False)",
}


def export(
    ctx: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="JOB[:STEP]",
            autocompletion=complete_job,
            help="The job as in other commands; `:STEP`, `:best` or `:latest` (default) chooses the checkpoint.",
        ),
    ],
    dtype: Annotated[
        ExportDtype | None,
        typer.Option(help="Type of the weights; default: fp32, or bf16 for a merged base held in fewer bits."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(*TARGET_NAMES, metavar="FOLDER", help="Target folder; default: JOBID-step-STEP-export."),
    ] = None,
    merge: Annotated[bool, typer.Option("--merge", help="LoRA: write the base model with merged adapters.")] = False,
    base: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the base model here, if it is not that of the spec."),
    ] = None,
    force: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a model of a job's checkpoint, also of a running, failed or cancelled job. Needs torch, but no GPU.

    Example: trainyard export last:best --dtype bf16
    """
    with make_client(ctx) as client:
        name, chosen = split_reference(reference)
        job = _find_job(client, name)
        _check_request(job, merge=merge, base=base)
        checkpoint = find_checkpoint(client, job, chosen, "checkpoint")
        target = output or Path(f"{safe_name(job.id)}-step-{checkpoint.step}-export")
        _check_target(target, force=force)
        with translate_write_errors(target), _working_folder(target) as folder:
            source = _local_folder(checkpoint) or _download(client, job, checkpoint, folder / "checkpoint", as_json)
            written = folder / "export"
            written.mkdir()
            request = _request(job, checkpoint, source, written, base)
            done = convert(request.model_copy(update={"dtype": dtype, "merge": merge}), quiet=as_json)
            _publish(written, target, folder / "replaced")
    if as_json:
        result = {"object": "export", "job_id": job.id, "step": checkpoint.step}
        print_json({**result, "kind": done.kind, "dtype": done.dtype, "path": str(target)})
    else:
        _print_export(target, done.kind)


def _print_export(target: Path, kind: ExportKind | None) -> None:
    print_line(escape_name(str(target)))
    if kind is not None:
        print_note(_CONTENTS[kind])


def _find_job(client: Client, name: str) -> JobResource:
    """Return the job as `find_job` does. Names may contain colons, so a name with an unknown checkpoint is read as a
    whole."""
    try:
        return find_job(client, name)
    except NotFoundError as error:
        if ":" not in name:
            raise
        message = f"{error.message} (after a colon, a checkpoint is a step, `best` or `latest`)"
        raise NotFoundError(message, status=error.status, code=error.code, param=error.param) from None


def _request(
    job: JobResource, checkpoint: CheckpointResource, source: Path, output: Path, base: Path | None
) -> ExportRequest:
    return ExportRequest(
        job_id=job.id,
        step=checkpoint.step,
        spec=job.spec,
        checkpoint=str(source.absolute()),
        output=str(output.absolute()),
        base=str(base.absolute()) if base else None,
    )


def split_reference(text: str) -> tuple[str, str]:
    """Return the job and the checkpoint of `JOB[:STEP]`; without a step the newest checkpoint."""
    name, colon, checkpoint = text.rpartition(":")
    if colon and (checkpoint.isdecimal() or checkpoint in _ENDS):
        return name, str(int(checkpoint)) if checkpoint.isdecimal() else checkpoint
    return text, "latest"


def _check_request(job: JobResource, *, merge: bool, base: Path | None) -> None:
    """Check the request as far as possible before anything is downloaded."""
    spec = job.spec
    if spec["task"] not in LOOP_TASKS:
        raise UsageError(f"a job of task `{spec['task']}` has no checkpoint of a model")
    if merge and spec.get("lora_rank") is None:
        raise UsageError(f"--merge is for jobs that train adapters, and job {job.id} trains the model")
    from_hub = (spec.get("model") or {}).get("source") == "hf"
    if base is not None and not from_hub:
        raise UsageError("--base is for jobs with a model of source `hf`")
    packages = ["worker", "torch", "safetensors"]
    packages += ["transformers"] if from_hub else []
    packages += ["peft"] if spec.get("lora_rank") is not None else []
    if missing := [package for package in packages if find_spec(package) is None]:
        raise UsageError(
            f"a checkpoint is converted on this machine, which lacks {', '.join(missing)}; install it with: "
            "pip install 'trainyard[worker,hf]', or run the command where the workers run"
        )


def _check_target(target: Path, *, force: bool) -> None:
    """Raise TargetExistsError unless the folder is absent or empty, or an earlier export that is to be replaced."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    if not force:
        raise TargetExistsError(f"{str(target)!r} exists already and is not replaced")
    if target.is_symlink() or not (target / _NOTE).is_file():
        raise UsageError(f"{str(target)!r} is not an export of this command, and --force replaces nothing else")


@contextmanager
def _working_folder(target: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the target, so that the export can be renamed; it is removed at the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:200]}.", dir=target.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _local_folder(checkpoint: CheckpointResource) -> Path | None:
    """Return the checkpoint's folder if this machine has it, as its digest proves."""
    folder = Path(checkpoint.path)
    try:
        digest = hashlib.sha256(CheckpointLayout(folder).manifest.read_bytes()).hexdigest()
    except OSError:
        return None
    return folder if f"sha256:{digest}" == checkpoint.digest else None


def _download(client: Client, job: JobResource, checkpoint: CheckpointResource, folder: Path, quiet: bool) -> Path:
    free = shutil.disk_usage(folder.parent).free
    if checkpoint.size_bytes > free:
        raise UsageError(
            f"the checkpoint takes {format_size(checkpoint.size_bytes)}, and {str(folder.parent.parent)!r} has "
            f"{format_size(free)} free; name another folder with --output"
        )
    with progress_bars(quiet=quiet) as report_bytes:
        return client.download(job.id, folder, checkpoint=checkpoint, progress=report_bytes)


def _publish(export_folder: Path, target: Path, replaced: Path) -> None:
    """Rename the finished export to its final name. An earlier export is renamed to `replaced`, which is removed
    later."""
    # Libraries that write safetensors ignore the umask, which the folder's mode has followed.
    mode = stat.S_IMODE(export_folder.stat().st_mode) & 0o666
    for path in export_folder.iterdir():
        path.chmod(mode)
    try:
        if os.path.lexists(target) and any(target.iterdir()):
            os.rename(target, replaced)
        os.rename(export_folder, target)
    except BaseException:
        if replaced.exists() and not target.exists():
            os.rename(replaced, target)
        raise
