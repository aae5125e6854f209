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
from service.jobs.listing import read_job
from service.web.dependencies import PagesDep, VisitorDep
from service.web.pages.spec_text import brief_spec, longer, set_field, spec_yaml
from trainyard.contract.spec.templates import Template, code_folder
from trainyard.contract.spec.user_code import CODE_TASKS

router = APIRouter(include_in_schema=False, route_class=SlotRoute)

DEFAULT_PRESET = "digits_ddp"

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
    preset: Annotated[str | None, Query(max_length=64)] = None,
    changes: Annotated[list[FieldChange] | None, Query(alias="set", max_length=20)] = None,
) -> HTMLResponse:
    """Return the page. `fork` starts from a job's spec and newest checkpoint, `from` from a copy of a job's spec.
    `set=optimizer.lr=0.1` changes a field of either."""
    templates = templates_by_name().values()
    texts = {template.name: preset_text(template) for template in templates}
    origin, text = origin_spec(app_state, now, fork=fork, copy=source, changes=changes or ())
    preset_name = preset if preset in texts else DEFAULT_PRESET
    return pages.render(
        "submit.html",
        visitor,
        section="/submit",
        presets=[template.name for template in templates if template.spec.get("task") not in CODE_TASKS],
        code_presets=[template.name for template in templates if template.spec.get("task") in CODE_TASKS],
        forked=origin is not None,
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
    app_state: AppState, now: datetime, *, fork: str | None, copy: str | None, changes: Sequence[str]
) -> tuple[dict[str, Any] | None, str]:
    """Return the job that the spec comes from, and the spec as YAML; None and "" if neither is given.

    Raises:
        NotFoundError: There is no such job.
    """
    if not (source_id := fork or copy):
        return None, ""
    job = read_job(app_state.database, source_id, app_state.settings.runs, now)
    document = brief_spec(job.spec)
    document.pop("resume_from", None)
    remark = ""
    if fork and job.last_checkpoint_step is not None:
        document["resume_from"] = job.id
        if job.status == "succeeded" and (length := longer(document)):
            remark = f"# All steps are done, so `{length}` is doubled.\n"
    for change in changes:
        path, _, value = change.partition("=")
        set_field(document, path, value)
    return {"id": job.id, "name": job.name, "step": job.last_checkpoint_step}, remark + spec_yaml(document)
