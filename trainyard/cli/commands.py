"""The table of commands. The module of a command is imported when the command is called."""

from importlib import import_module
from typing import Any

import typer

COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Train": {
        "run": ("run:run", "Run a program of yours, unchanged, from this folder."),
        "submit": ("submit:submit", "Submit a training job."),
        "plan": ("plan:plan", "Show the memory that a spec needs by strategy."),
        "sweep": (
            "sweep:sweep",
            "Submit one job for every combination of field values, or search for the best values.",
        ),
        "fork": ("checkpoints:fork", "Start a new job from a job's checkpoint, with its spec and your changes."),
        "fix": ("fix:fix", "List the changes that would help a job, or submit its spec with one of them."),
        "templates": ("submit:templates", "List the presets, or print one as YAML."),
        "files": ("files:app", "Upload JSONL files, whose ids specs name as data."),
        "secrets": ("secrets:app", "Store values that your jobs need, such as HF_TOKEN."),
    },
    "Inspect": {
        "list": ("job_list:list_jobs", "List jobs, newest first or in any order."),
        "show": ("jobs:show", "Show one job: status, progress, metrics and errors."),
        "watch": ("submit:watch_command", "Follow a job until it ends: status, progress, loss, throughput."),
        "logs": ("logs:logs", "Show a job's log."),
        "metrics": ("metrics:metrics", "Show the metrics of one job or several."),
        "compare": ("compare:compare", "Compare jobs: the fields in which their specs differ, and their metrics."),
        "views": ("edit:views", "List saved views of the runs table: yours and shared ones."),
        "sweeps": ("sweep:sweeps", "List sweeps, or show one with its jobs."),
        "data": (
            "data:data",
            "Show what a job learns of its data: records, tokens, and three examples of each source.",
        ),
        "events": ("history:events", "List a job's events, oldest first."),
        "attempts": ("history:attempts", "List a job's attempts: where each ran, and how it ended."),
        "script": ("history:script", "Show the batch script as it was submitted."),
        "open": ("open_page:open_page", "Open the page of a job in the browser, signed in as the user of your token."),
        "tensorboard": ("tensorboard:tensorboard", "Write jobs' metrics as TensorBoard event files."),
        "profile": ("jobs:profile", "Request a profiler trace of a running job's next steps."),
        "shell": ("shell:shell", "Open a shell beside a rank of a running job, in its environment."),
        "exec": ("shell:execute", "Run one command on each node of a running job, in the environment of its ranks."),
    },
    "Control": {
        "cancel": ("control:cancel", "Cancel jobs."),
        "pause": (
            "control:pause",
            "Pause jobs: each writes a checkpoint and releases its resources; `resume` continues it.",
        ),
        "resume": ("control:resume", "Continue paused jobs from their last checkpoints."),
        "retry": ("control:retry", "Run failed or cancelled jobs again, from their last checkpoints."),
        "sweep-cancel": ("sweep:sweep_cancel", "Cancel all active jobs of a sweep."),
        "delete": ("checkpoints:delete", "Delete jobs that have ended, with their files; or only their checkpoints."),
        "tag": ("edit:tag", "Add tags to jobs, or remove them."),
        "note": ("edit:note", "Write the notes of a job; without a text, print them."),
        "rename": ("edit:rename", "Give a job another name."),
        "archive": ("edit:archive", "Archive jobs that have ended: lists leave them out, and nothing is deleted."),
    },
    "Results": {
        "checkpoints": ("checkpoints:checkpoints", "List a job's checkpoints, with their metrics and folders."),
        "download": ("checkpoints:download", "Download a job's export, checkpoint or artifact."),
        "export": ("export:export", "Make a model of a job's checkpoint, also of a running, failed or cancelled job."),
        "generate": ("generate:generate", "Continue a text with a trained model, and print it as it is made."),
        "samples": (
            "history:samples",
            "Print the texts that a job's model generated at an evaluation (evaluation.samples).",
        ),
        "artifacts": ("artifacts:artifacts", "List or download a job's artifacts (tables, traces)."),
        "media": ("artifacts:media", "List or download what a job's program logged beside numbers, by key and step."),
        "usage": ("checkpoints:usage", "Show the disk use by user, and the free space."),
        "models": ("models:app", "Name models of your jobs, with versions and aliases."),
        "projects": ("projects:app", "Create projects, with members, roles and quotas."),
    },
    "Sign in": {
        "login": ("login:login", "Sign in with munge on the cluster, or with a browser; later commands use the token."),
        "logout": ("login:logout", "End the sign-in: revoke its token and remove it from this account's files."),
    },
    "Run the service": {
        "serve": ("serve:serve", "Run the service on this machine."),
        "doctor": ("doctor:doctor", "Check the installation; each finding has a fix."),
        "cluster": (
            "cluster:cluster",
            "Show partitions, their limits, free nodes and GPUs, and the nodes that jobs avoid.",
        ),
        "audit": ("audit:audit", "Show the audit log, newest first."),
        "resolve": ("control:resolve", "Settle a job that is lost or whose submission is unconfirmed."),
        "orphans": (
            "orphans:orphans",
            "List queue entries and run directories without a job, such as after a restore.",
        ),
        "tokens": ("tokens:app", "Create, list and revoke API tokens."),
        "webhooks": ("webhooks:app", "Notify a server of status changes."),
        "maintenance": ("cluster:maintenance", "Stop submissions while the cluster is being worked on."),
    },
}
"""For each heading of the help, its commands in their order, each with a location and a summary. The location is a
module, and a function or a group of commands in it. The summary is the first sentence of the function's docstring, or
the help of the group."""


def load_command(name: str) -> Any:
    """Import this command and return the object that parses its arguments: a Command of Click or of Typer's copy."""
    location, summary = next(commands[name] for commands in COMMANDS.values() if name in commands)
    module, _, attribute = location.partition(":")
    target = getattr(import_module(f"trainyard.cli.{module}"), attribute)
    app = typer.Typer(rich_markup_mode=None)
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name, help=summary)
    else:
        # Arguments after the program of `run` belong to the program.
        app.command(name, context_settings={"allow_interspersed_args": False} if name == "run" else None)(target)
    return typer.main.get_group(app).commands[name]
