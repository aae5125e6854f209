"""The page for writing a spec, with its plan."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse
from pydantic import StringConstraints

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.api.json_body import SlotRoute
from service.api.routes.templates import templates_by_name
from service.jobs.listing import free_name, read_job
from service.web.dependencies import PagesDep, VisitorDep
from service.web.pages.spec_text import brief_spec, longer, set_field, spec_yaml
from trainyard.contract.kinds.tasks import CODE_TASKS
from trainyard.contract.spec.templates import Template, code_folder
from trainyard.contract.spec.training_spec import MAX_LABELS
from trainyard.contract.wire.jobs import JobResource
from trainyard.contract.wire.lineage import FORKED_FROM

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

DEFAULT_PRESET = "digits_ddp"

_NO_LENGTH = "# The spec states no length: the program decides how long it trains.\n"

FieldChange = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+(\.[a-z0-9_]+){0,5}=[^\n]*$", max_length=400)]
JobId = Annotated[str | None, Query(max_length=40)]


@router.get("/submit")
def show_submit(
    app_state: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    fork: JobId = None,
    source: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    is_longer: Annotated[bool, Query(alias="longer")] = False,
    preset: Annotated[str | None, Query(max_length=64)] = None,
    changes: Annotated[list[FieldChange] | None, Query(alias="set", max_length=20)] = None,
) -> HTMLResponse:
    """Return the page. `fork` starts from a job's spec and newest checkpoint, `from` from a copy of a job's spec, and
    `longer=true` doubles its length. `set=optimizer.lr=0.1` changes a field of either."""
    templates = templates_by_name().values()
    texts = {template.name: preset_text(template) for template in templates}
    origin, text = origin_spec(app_state, now, fork=fork, copy=source, is_longer=is_longer, changes=changes or ())
    preset_name = preset if preset in texts else DEFAULT_PRESET
    return pages.render(
        "submit.html",
        visitor,
        section="/submit",
        presets=[template.name for template in templates if template.spec.get("task") not in CODE_TASKS],
        code_presets=[template.name for template in templates if template.spec.get("task") in CODE_TASKS],
        forked=origin is not None,
        accelerator=app_state.settings.known_accelerator,
        selected=None if origin else preset_name,
        text=text or texts[preset_name],
        may_submit=visitor.user.role != "viewer",
        may_run_code=visitor.user.may_run_code or visitor.user.role in app_state.settings.code_roles,
        data={"presets": texts, "given": bool(origin or preset), "source": origin, "code": preset_code()},
    )


def preset_text(template: Template) -> str:
    """Return a preset as YAML, with its description as a comment above it."""
    return f"# {template.description}\n{spec_yaml(template.spec)}"


@cache
def preset_code() -> dict[str, str]:
    """Return the user code of the presets: file contents by file name."""
    return {file.name: file.read_text() for file in sorted(code_folder().glob("*.py"))}


def origin_spec(
    app_state: AppState, now: datetime, *, fork: str | None, copy: str | None, is_longer: bool, changes: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """Return the job that the spec comes from, and the spec as YAML; None and "" if neither is given.

    Raises:
        NotFoundError: There is no such job.
    """
    if not (source_id := fork or copy):
        return None, ""
    job = read_job(app_state.database, source_id, app_state.settings.runs, now)
    document = copied_spec(job, free_name(app_state.database, job.name, now))
    continues = fork is not None and job.last_checkpoint_step is not None
    is_done = continues and job.status == "succeeded"
    length = doubled(document, "All steps are done, so " if is_done else "") if is_done or is_longer else None
    if continues:
        document["resume_from"] = job.id
    for change in changes:
        path, _, value = change.partition("=")
        set_field(document, path, value)
    source = {"id": job.id, "name": job.name, "step": job.last_checkpoint_step, "length": length if is_done else None}
    remark = length["remark"] if length else _NO_LENGTH if is_longer else ""
    return source, remark + spec_yaml(document)


def copied_spec(job: JobResource, name: str) -> dict[str, Any]:
    """Return the spec of a job for a new job, which has another name and records where it comes from."""
    document = brief_spec(job.spec)
    for field in ("resume_from", "after"):
        document.pop(field, None)
    if job.project is not None:
        document["project"] = job.project  # It may have been moved since its submission.
    first = {"version": document.pop("version")} if "version" in document else {}
    document = {**first, "name": name, **{field: value for field, value in document.items() if field != "name"}}
    labels = {**(document.get("metadata") or {}), FORKED_FROM: job.id}
    return {**document, "metadata": labels} if len(labels) <= MAX_LABELS else document


def doubled(document: dict[str, Any], reason: str) -> dict[str, Any] | None:
    """Double the length of a run in its spec, and return the field with both values and a comment; None without a
    length."""
    before = dict(document)
    if not (field := longer(document)):
        return None
    remark = f"# {reason}`{field}` is doubled: {document[field]} instead of {before[field]}.\n"
    return {"field": field, "before": before[field], "after": document[field], "remark": remark}
