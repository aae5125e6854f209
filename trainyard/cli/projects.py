"""`trainyard projects`: created projects, their members and their quotas."""

from typing import Annotated, Any

import typer

from trainyard.cli.arguments import JsonOption, make_client
from trainyard.cli.completion import complete_project
from trainyard.cli.confirm import confirm_deletion
from trainyard.cli.errors import UsageError, show_help
from trainyard.cli.output import format_age, print_deleted, print_error, print_json, print_line, print_list
from trainyard.contract.sizes import format_size
from trainyard.contract.wire.projects import ProjectDetail, ProjectResource, ProjectUsage

app = typer.Typer(callback=show_help, invoke_without_command=True, rich_markup_mode=None)

ProjectArgument = Annotated[
    str, typer.Argument(metavar="PROJECT", autocompletion=complete_project, help="Name of the project.")
]
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
DescriptionOption = Annotated[str | None, typer.Option("--description", help="What the project is about.")]
PrivateOption = Annotated[
    bool | None,
    typer.Option("--private/--open", help="Only its members and administrators read its jobs, or everybody."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_projects(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the created projects.

    Example: trainyard projects list
    """
    with make_client(ctx) as client:
        listed = list(client.projects())
    print_list(
        listed,
        ("NAME", "VISIBILITY", "ROLE", "CREATED", "BY", "DESCRIPTION"),
        _row,
        as_json=as_json,
        empty_message="there are no created projects; create one: trainyard projects create NAME",
        optional=("DESCRIPTION", "CREATED"),
    )


def _row(project: ProjectResource) -> tuple[str, ...]:
    created, role = format_age(project.created_at), project.role or "-"
    return project.name, project.visibility, role, created, project.created_by, project.description


@app.command("show")
def show(ctx: typer.Context, project: ProjectArgument, as_json: JsonOption = False) -> None:
    """Show a project: its members, its quotas and what its jobs use.

    Example: trainyard projects show zoo
    """
    with make_client(ctx) as client:
        detail, usage = client.project(project), client.project_usage(project)
    if as_json:
        print_json({**detail.model_dump(mode="json"), "usage": usage.model_dump(mode="json")})
        return
    _print_detail(detail)
    for line in _usage_lines(usage):
        print_line(line)
    print_line(f"jobs: trainyard list --project {detail.name!r}")


def _print_detail(detail: ProjectDetail) -> None:
    print_line(f"{detail.name}: {detail.visibility}, created {format_age(detail.created_at)} by {detail.created_by}")
    if detail.description:
        print_line(detail.description)
    members = ", ".join(f"{member.name} ({member.role})" for member in detail.members)
    print_line(f"members: {members or 'none'}")


def _usage_lines(usage: ProjectUsage) -> tuple[str, ...]:
    gpus = "no limit" if usage.max_gpus is None else f"at most {usage.max_gpus}"
    queued = "no limit" if usage.max_queued is None else f"at most {usage.max_queued}"
    return (
        f"{usage.jobs} jobs, {usage.unfinished} unfinished, {format_size(usage.disk_bytes)}",
        f"GPUs in use: {usage.gpus} ({gpus})",
        f"queued jobs: {usage.queued} ({queued})",
    )


@app.command("create")
def create(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project.")],
    description: DescriptionOption = None,
    private: PrivateOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a project, as its manager. Your jobs that have this name as their project belong to it.

    Example: trainyard projects create zoo --private
    """
    with make_client(ctx) as client:
        made = client.create_project(name, description=description or "", visibility="private" if private else "open")
    _print_changed(made, as_json=as_json)


@app.command("set")
def change(
    ctx: typer.Context,
    project: ProjectArgument,
    description: DescriptionOption = None,
    private: PrivateOption = None,
    max_gpus: Annotated[
        str | None, typer.Option("--max-gpus", metavar="N|none", help="Administrators: GPUs that its jobs use at once.")
    ] = None,
    max_queued: Annotated[
        str | None, typer.Option("--max-queued", metavar="N|none", help="Administrators: its queued jobs.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Change the description or the visibility of a project that you manage, or as an administrator its quotas.

    Example: trainyard projects set zoo --open
    """
    changes: dict[str, Any] = {} if description is None else {"description": description}
    if private is not None:
        changes["visibility"] = "private" if private else "open"
    for field, text in (("max_gpus", max_gpus), ("max_queued", max_queued)):
        if text is not None:
            changes[field] = _limit(field, text)
    if not changes:
        raise UsageError("give a change, like: trainyard projects set PROJECT --private")
    with make_client(ctx) as client:
        changed = client.change_project(project, **changes)
    _print_changed(changed, as_json=as_json)


def _limit(field: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--{field.replace('_', '-')} takes a number, or `none` for no limit")
    return int(text)


def _print_changed(detail: ProjectDetail, *, as_json: bool) -> None:
    if as_json:
        print_json(detail)
    else:
        _print_detail(detail)


@app.command("add-member")
def add_member(
    ctx: typer.Context,
    project: ProjectArgument,
    user: UserArgument,
    role: Annotated[
        str | None,
        typer.Option("--role", help="`viewer` (reads), `member` (also submits; default) or `manager` (also members)."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add a member to a project that you manage, or change the role of a member.

    Example: trainyard projects add-member zoo anna --role viewer
    """
    with make_client(ctx) as client:
        member = client.set_project_member(project, user, role)
    if as_json:
        print_json(member)
    else:
        print_line(f"{member.name} is {member.role} of the project {member.project}")


@app.command("remove-member")
def remove_member(
    ctx: typer.Context, project: ProjectArgument, user: UserArgument, as_json: JsonOption = False
) -> None:
    """Remove a member from a project that you manage, or yourself from any.

    Example: trainyard projects remove-member zoo anna
    """
    with make_client(ctx) as client:
        client.remove_project_member(project, user)
    print_deleted(f"member {user} of project", project, "removed", as_json=as_json)


@app.command("delete")
def delete(ctx: typer.Context, project: ProjectArgument, yes: YesOption = False, as_json: JsonOption = False) -> None:
    """Delete a project that you manage. Its jobs stay, and its name becomes a label that everybody can use.

    Example: trainyard projects delete zoo
    """
    question = f"delete the project {project}, with its members and quotas? Its jobs stay"
    if not yes and not as_json and not confirm_deletion(question):
        print_error("not deleted")
        return
    with make_client(ctx) as client:
        client.delete_project(project)
    print_deleted("project", project, "deleted", as_json=as_json)
