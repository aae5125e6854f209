"""The process's settings, read once in `__main__` from TRAINYARD_* and passed on; never a global."""

import os
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Literal

import sqlalchemy as sa
from pydantic import Field, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from service.core.private_files import read_secret
from service.core.setting_parsers import parse_gpu_memory, parse_sbatch_options
from trainyard.contract.local_paths import DEFAULT_HOST, DEFAULT_PORT, default_state_dir
from trainyard.contract.spec.site import Site

Accelerator = Literal["cpu", "cuda"]

_PREFIX = "TRAINYARD_"
_NEAR = 0.9
"""Alike enough to be meant; `PORTS`, which the compose file has, is not `PORT`."""


class Settings(BaseSettings):
    """Every setting has a default that suits one person on one machine."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, use_attribute_docstrings=True)

    state_dir: Path = Field(default_factory=default_state_dir)
    """The service's own files: SQLite database, admin token, local queue."""
    runs_dir: Path | None = None
    """Run directories, on the filesystem shared with the nodes; default `<state_dir>/runs`."""
    database_url: str = ""
    """`sqlite:///...` or `postgresql://...`; default SQLite in the state folder."""
    database_password_file: Path | None = None
    """Holds the password for `database_url`, which then names none: a file that this account alone may read."""
    admin_token_file: Path | None = None
    """Holds an administrator's token, `ty_<12 hexadecimal digits>_<secret>`, that an operator has made; replicas read
    the same one. Absent: the first start makes one in the state folder."""
    reconcile: bool = True
    """Whether this process also reconciles, and migrates the database when it starts. One that only answers requests
    is a replica of the API, on Postgres."""
    backend: Literal["local", "slurm"] = "local"
    accelerator: Accelerator | Literal["auto"] = "auto"
    """What the workers have. `auto`: on Slurm, whether the job's partition has GPUs; on the local backend, whether this
    machine shows an NVIDIA device."""
    host: str = DEFAULT_HOST
    port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_PORT
    public_url: str = ""
    """What workers call; default `http://<host>:<port>`."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """More names under which the service may be called, comma-separated; its own and PUBLIC_URL's are known."""
    allowed_roots: Annotated[tuple[str, ...], NoDecode] = ()
    """Folders under which the models and data of specs must lie, comma-separated, as the nodes see them; absent: the
    home folder of the service's account and the runs."""
    local_slots: Annotated[int, Field(ge=1)] = max(4, os.cpu_count() or 1)
    """Worker processes at once on the local backend; the rest wait. Four on a small machine too: that is what it takes
    to try every strategy."""
    instance: Annotated[str, Field(pattern=r"^[a-z0-9]{1,12}$")] = "main"
    """Part of every scheduler tag, so that two services on one cluster never mistake each other's jobs."""
    tick_seconds: Annotated[float, Field(gt=0)] = 1.0
    """Pause between two looks at the scheduler while something is under way."""
    slurm_poll_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Least time between two questions to Slurm; each costs it one squeue and at most one sacct."""
    slurm_max_poll_seconds: Annotated[float, Field(gt=0)] = 60.0
    """While nothing changes the pause between two questions doubles up to this; anything new starts it over."""
    slurm_python: Path | None = None
    """The interpreter on the nodes that has torch and Trainyard's worker; absent: at the same path as the service's."""
    slurm_submit_timeout_seconds: Annotated[float, Field(ge=1)] = 300.0
    """How long sbatch may take; longer than the two minutes for which it tries again by itself."""
    slurm_confirm_absence_seconds: Annotated[float, Field(ge=1)] = 180.0
    """How long after sbatch was last asked a submission without an answer, which three look-ups have not found, is
    repeated; longer than sbatch's request may travel."""
    slurm_signal_lead_seconds: Annotated[int, Field(ge=1, le=3600)] = 180
    """How long before a job's time limit Slurm is to warn it; longer than a checkpoint takes."""
    slurm_time_limit_minutes: Annotated[int | None, Field(ge=1)] = None
    """The time limit of jobs that name none; absent: their partition's."""
    slurm_gpus_per_node: Annotated[int | None, Field(ge=1)] = None
    """Ranks on a node for jobs that do not say; absent: all ranks on one node."""
    slurm_preflight: bool = True
    """Whether a job that asks for more than the cluster's snapshot has is refused before it is submitted; off where a
    plugin of the site's changes what is asked."""
    slurm_host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]{0,128}$")] = ""
    """Appended to a node's name to get its name on the network between the nodes, such as `-ib0`."""
    slurm_extra_options: str = ""
    """sbatch options for every job, such as `--reservation=ai --exclusive`; `service/core/setting_parsers.py` has
    those that may be set."""
    slurm_network_interface: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,-]{0,64}$")] = ""
    """Through which the ranks of several nodes talk, such as `ib0`; absent: gloo and nccl choose."""
    pause_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a job that is to pause may take to save and leave before the scheduler is asked to end it."""
    gpu_memory_gb: str = ""
    """GPU types and their memory in GiB, where the planner does not know them: `mygpu=48,a100=80`; `=24` for GPUs
    without a type."""
    code_roles: Annotated[tuple[Literal["admin", "user"], ...], NoDecode] = ("admin",)
    """Roles that may run code of their own (`custom` and `script` jobs), comma-separated: it runs as the service's
    account, so whoever may can do what that account can."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is believed, comma-separated."""
    rate_per_second: Annotated[float, Field(gt=0)] = 100.0
    """Requests that one token may make in the long run, in each process of the API; beyond it, 429."""
    rate_burst: Annotated[int, Field(ge=1)] = 1000
    """And at once."""
    worker_rate_per_second: Annotated[float, Field(gt=0)] = 1000.0
    """The same for a worker's token."""
    worker_rate_burst: Annotated[int, Field(ge=1)] = 5000
    max_connections: Annotated[int, Field(ge=1)] = 4000
    """Open at once; more are closed at once."""
    max_gpus_per_user: Annotated[int | None, Field(ge=1)] = None
    """What the jobs of one person may have at the scheduler at once; the others wait in `queued`. Absent: no limit."""
    max_gpus_per_admin: Annotated[int | None, Field(ge=1)] = None
    """The same for jobs that were submitted with an administrator's token."""
    max_queued_per_user: Annotated[int | None, Field(ge=1)] = 10_000
    """Jobs of one person that may be `queued` before another one is refused."""
    max_sweep_members: Annotated[int, Field(ge=1, le=1000)] = 200
    """Jobs that one sweep may have."""
    webhook_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts (`name` or `name:port`, comma-separated) to which webhooks may go by http and at private addresses."""
    session_hours: Annotated[float, Field(gt=0)] = 168.0
    """How long a browser stays signed in; shorter where the token that it signed in with ends before."""
    audit_retention_days: Annotated[int, Field(ge=1)] = 365
    """How long the audit is kept."""
    code_retention_days: Annotated[int, Field(ge=1)] = 7
    """How long uploaded code stays that no job refers to."""
    delivery_retention_days: Annotated[int, Field(ge=1)] = 30
    """How long messages to webhooks are listed after they were made."""
    body_limit: int = 1024 * 1024
    """Largest request body in bytes; log appends have their own limit."""
    low_disk_gb: Annotated[float, Field(ge=0)] = 5.0
    """Free space for runs, in 10^9 bytes, below which running jobs are warned."""
    quota_gb_per_user: Annotated[float | None, Field(gt=0)] = None
    """What one person's jobs may hold on disk, in 10^9 bytes, before a new one is refused; absent: no limit."""
    max_streams: Annotated[int, Field(ge=1)] = 1000
    """Live streams open at once; beyond it a client is told to come again (429)."""
    metrics_retention_days: Annotated[int | None, Field(ge=1)] = None
    """So long after its end a job keeps every point; then those that its curves are drawn from. Absent: for ever."""
    ingest_limit: Annotated[int, Field(ge=1024 * 1024)] = 64 * 1024 * 1024
    """Bytes of reported points that may wait to be written; beyond it workers are told to come again (429)."""
    log_limit: int = 64 * 1024 * 1024
    """Bytes of one rank's log kept in the database, the newest ones."""
    log_disk_limit: Annotated[int, Field(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """Bytes that one rank's log file may take on disk, where its filesystem can give back the beginning of a file."""
    log_format: Literal["console", "json"] = "console"

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, values: dict[str, object]) -> dict[str, object]:
        for name in ("allowed_hosts", "allowed_roots", "code_roles", "trusted_proxies", "webhook_allowed_hosts"):
            text = values.get(name)
            if isinstance(text, str):
                values[name] = tuple(part.strip() for part in text.split(",") if part.strip())
        return values

    @field_validator("allowed_roots")
    @classmethod
    def _absolute_roots(cls, roots: tuple[str, ...]) -> tuple[str, ...]:
        for root in roots:
            if not Path(root).is_absolute() or ".." in Path(root).parts:
                raise ValueError(f"`{root}` is not an absolute path without `..`")
        return roots

    @field_validator("gpu_memory_gb")
    @classmethod
    def _known_sizes(cls, text: str) -> str:
        parse_gpu_memory(text)
        return text

    @field_validator("slurm_extra_options")
    @classmethod
    def _known_options(cls, text: str) -> str:
        parse_sbatch_options(text)
        return text

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError(f"`{proxy}` is neither an address nor a network such as 10.1.0.0/16") from None
        return proxies

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url and not url.startswith(("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")):
            raise ValueError("must be sqlite:///<file> or postgresql://<user>@<host>/<database>")
        return url

    @property
    def state(self) -> Path:
        return self.state_dir.expanduser().absolute()

    @property
    def runs(self) -> Path:
        return (self.runs_dir or self.state / "runs").expanduser().absolute()

    @property
    def url(self) -> str:
        """The database's URL with a driver that is installed, and its password.

        Raises:
            ServiceError: the password's file cannot be read, or others can read it.
        """
        if not self.database_url:
            return f"sqlite:///{self.state / 'trainyard.sqlite'}"
        url = self.database_url
        for short in ("postgres://", "postgresql://"):
            if url.startswith(short):
                url = "postgresql+psycopg://" + url.removeprefix(short)
        if self.database_password_file is None:
            return url
        return sa.make_url(url).set(password=read_secret(self.database_password_file)).render_as_string(False)

    @property
    def python(self) -> str:
        """The interpreter on the nodes."""
        return str(self.slurm_python) if self.backend == "slurm" and self.slurm_python else sys.executable

    @property
    def low_disk_bytes(self) -> int:
        return int(self.low_disk_gb * 1e9)

    @property
    def quota_bytes(self) -> int | None:
        """Per person."""
        return int(self.quota_gb_per_user * 1e9) if self.quota_gb_per_user is not None else None

    @property
    def service_url(self) -> str:
        if self.public_url:
            return self.public_url.rstrip("/")
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104 (a name to replace)
        return f"http://{host}:{self.port}"

    @property
    def known_accelerator(self) -> Accelerator | None:
        """What the workers have, whatever the job; None: it depends on the partition."""
        if self.accelerator != "auto":
            return self.accelerator
        if self.backend == "slurm":
            return None
        return "cuda" if Path("/dev/nvidia0").exists() else "cpu"

    @property
    def site(self) -> Site:
        return Site(
            accelerator=self.known_accelerator,
            scheduler=self.backend,
            roots=self.allowed_roots or (str(Path.home()), str(self.runs)),
            gpus_per_node=self.slurm_gpus_per_node,
            slots=self.local_slots if self.backend == "local" else None,
        )


def misspelled_variables(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Names of variables that are no setting and nearly one, each with the setting."""
    known = {field.upper() for field in Settings.model_fields}
    for name in names:
        bare = name.removeprefix(_PREFIX)
        if name.startswith(_PREFIX) and bare not in known and (near := get_close_matches(bare, known, 1, _NEAR)):
            yield name, _PREFIX + near[0]
