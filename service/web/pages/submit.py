"""The page on which a spec is written: a preset or one's own, with its plan beside it."""

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import HTMLResponse

from service.api.dependencies import AppState, AppStateDep, NowDep
from service.api.routes.templates import templates_by_name
from service.jobs.listing import read_job
from service.web.pages.jobs import PagesDep, VisitorDep
from service.web.pages.spec_text import brief_spec, spec_yaml
from service.web.rendering import Visitor
from trainyard.contract.spec.templates import Template, code_folder
from trainyard.contract.spec.user_code import CODE_TASKS

router = APIRouter(include_in_schema=False)

FIRST = "digits_ddp"
"""What a new page begins with."""

JobId = Annotated[str | None, Query(max_length=40)]


@router.get("/submit")
def show_submit(
    services: AppStateDep,
    pages: PagesDep,
    visitor: VisitorDep,
    now: NowDep,
    fork: JobId = None,
    source: Annotated[str | None, Query(alias="from", max_length=40)] = None,
    preset: Annotated[str | None, Query(max_length=64)] = None,
) -> HTMLResponse:
    """`fork` begins with a job's spec, to go on from its newest checkpoint, if any; `from` with a copy of a spec."""
    ready = templates_by_name().values()
    texts = {template.name: preset_text(template) for template in ready}
    origin, text = begin_with(services, visitor, now, fork=fork, copy=source)
    chosen = preset if preset in texts else FIRST
    return pages.show(
        "submit.html",
        visitor,
        now,
        here="/submit",
        ready=[template for template in ready if template.spec.get("task") not in CODE_TASKS],
        with_code=[template for template in ready if template.spec.get("task") in CODE_TASKS],
        forked=origin is not None,
        chosen=None if origin else chosen,
        text=text or texts[chosen],
        may_submit=visitor.user.role != "viewer",
        may_run_code=visitor.user.may_run_code or visitor.user.role in services.settings.code_roles,
        data={"presets": texts, "given": bool(origin or preset), "source": origin, "code": preset_code()},
    )


def preset_text(template: Template) -> str:
    """With its description above it, as in its file."""
    return f"# {template.description}\n{spec_yaml(template.spec)}"


@cache
def preset_code() -> dict[str, str]:
    """The files that presets with code of their own run, by name."""
    return {file.name: file.read_text() for file in sorted(code_folder().glob("*.py"))}


def begin_with(
    services: AppState, visitor: Visitor, now: Any, *, fork: str | None, copy: str | None
) -> tuple[dict[str, Any] | None, str]:
    """The job that the spec is from, and the spec; nothing of both where it begins with a preset.

    Raises:
        NotFoundError: there is no such job.
    """
    if not (source_id := fork or copy):
        return None, ""
    job = read_job(services.database, source_id, services.settings.runs, now)
    document = brief_spec(job.spec)
    document.pop("resume_from", None)
    if fork and job.last_checkpoint_step is not None:
        document["resume_from"] = job.id
    return {"id": job.id, "name": job.name, "step": job.last_checkpoint_step}, spec_yaml(document)
