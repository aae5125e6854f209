"""Settings of the process: read once in `service.main` from TRAINYARD_* variables and passed on, never a global."""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import sqlalchemy as sa
from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from service.core.address_settings import AddressSettings
from service.core.oidc_settings import OidcSettings
from service.core.private_files import read_secret
from service.core.setting_parsers import parse_gpu_memory, parse_option_names, parse_sbatch_options, require_inheritable
from service.core.slurm_settings import SlurmSettings
from trainyard.contract.local_paths import default_state_dir
from trainyard.contract.sizes import GIB
from trainyard.contract.spec.containers import ContainerRuntime
from trainyard.contract.spec.environment import ATTEMPT_VARIABLE
from trainyard.contract.spec.site import Site

Accelerator = Literal["cpu", "cuda"]
RunAs = Literal["service", "owner"]

_PREFIX = "TRAINYARD_"
_LIST_SETTINGS = (
    *("allowed_hosts", "allowed_roots", "allowed_variables", "code_roles", "container_images", "disabled_plugins"),
    *("job_environment", "oidc_email_domains", "oidc_group_roles", "slurm_allowed_options", "trusted_proxies"),
    "webhook_allowed_hosts",
)
"""Settings that are comma-separated."""
_SIMILARITY = 0.9
"""Similarity above which a variable counts as misspelled; `PORTS` of the compose file is not a misspelled `PORT`."""


class Settings(SlurmSettings, OidcSettings, AddressSettings):
    """Every setting has a default that suits a single user on a single machine."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, use_attribute_docstrings=True)

    state_dir: Path = Field(default_factory=default_state_dir)
    """The service's own files: SQLite database, admin token, local queue."""
    runs_dir: Path | None = None
    """Run directories, on the filesystem that is shared with the nodes; default `<state_dir>/runs`."""
    runs_group_readable: bool = False
    """Whether the group of the runs directory may read run directories (modes 0640 and 0750). The directory needs the
    setgid bit: `chgrp team <runs>; chmod g+s <runs>`. Default: only the service's account (0600 and 0700)."""
    database_url: str = ""
    """`sqlite:///...` or `postgresql://...`; default: SQLite in the state directory."""
    database_password_file: Path | None = None
    """File with the password of `database_url`; only the service's account may read it."""
    admin_token_file: Path | None = None
    """File with an administrator's token, `ty_<12 hexadecimal digits>_<secret>`, for replicas that share a token;
    default: the first start creates a token in the state directory."""
    secrets_key_file: Path | None = None
    """File with the key that encrypts users' secrets, for replicas that share a key; default: the first secret creates
    `secrets.key` in the state directory. Without the key, stored secrets are lost."""
    reconcile: bool = True
    """Whether this process also reconciles and migrates the database; false for a replica of the API on Postgres."""
    backend: Literal["local", "slurm"] = "local"
    """Where jobs run: as processes of this machine, or in Slurm."""
    accelerator: Accelerator | Literal["auto"] = "auto"
    """Accelerator of the workers. `auto`: on Slurm, whether the job's partition has GPUs; on the local backend, whether
    this machine has an NVIDIA device."""
    allowed_roots: Annotated[tuple[str, ...], NoDecode] = ()
    """Folders that may contain the models and data of specs beside the runs directory, comma-separated, as the nodes
    see them; every user can read them through a job, but for names below them that begin with a dot. Default: none."""
    container_runtime: ContainerRuntime | None = None
    """The program that starts containers on the nodes: `apptainer`, `charliecloud`, `docker`, `enroot`, `podman` or
    `pyxis`; default: none, and specs with `environment.container` are rejected."""
    container_images: Annotated[tuple[str, ...], NoDecode] = ()
    """Images that specs may name beside files under `allowed_roots`, comma-separated: references, and patterns such as
    `nvcr.io/nvidia/*`; default: none."""
    local_slots: Annotated[int, Field(ge=1)] = max(4, os.cpu_count() or 1)
    """Maximum number of concurrent worker processes on the local backend; at least four by default, so that every
    strategy can run."""
    instance: Annotated[str, Field(pattern=r"^[a-z0-9]{1,12}$")] = "main"
    """Part of every scheduler tag; distinguishes several services on a cluster."""
    tick_seconds: Annotated[float, Field(gt=0)] = 1.0
    """Pause between two ticks of the reconciler while jobs are active."""
    pause_timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """How long a pausing job may take to save and exit before the scheduler is requested to end it."""
    site_patience_days: Annotated[float, Field(gt=0)] = 7.0
    """How long the attempts of a job may end soon after their start, such as by preemptions and failing nodes, before
    the job fails; ten of them must have."""
    gpu_memory_gb: str = ""
    """Memory in GiB of GPU types that the planner does not know: `mygpu=48,a100=80`; `=24` for GPUs without a type."""
    code_roles: Annotated[tuple[Literal["admin", "user"], ...], NoDecode] = ("admin",)
    """Roles that may run their own code (`custom` and `script` jobs), comma-separated. The code has all rights of the
    service's account."""
    allowed_variables: Annotated[tuple[str, ...], NoDecode] = ()
    """Further environment variables that every user may set in a spec, comma-separated: names, and prefixes such as
    `WANDB_*`. None of them may be read as a path, a library, a module or a command. All other names require the code
    role."""
    job_environment: Annotated[tuple[str, ...], NoDecode] = ()
    """Variables of the service's own environment that jobs inherit, in addition to the variables that every program
    needs, comma-separated: names, and prefixes such as `NCCL_*`. Default: none."""
    site_setup: Path | None = None
    """A file of bash on the nodes, which each node of every job sources before the ranks start. The ranks get the
    variables that it exports. Its last command must succeed."""
    modules_init: Path | None = None
    """File that defines the command `module` in bash, on the nodes. Default: the node searches `$MODULESHOME`, the
    folders of Lmod and of Environment Modules, and `/etc/profile.d`."""
    run_as: RunAs = "service"
    """Unix account of jobs. `service`: the service's account; `owner`: the account of the user who submitted the job,
    which a sign-in by munge or `trainyard tokens link` determines."""
    munge_role: Literal["", "user", "viewer"] = ""
    """Role of Unix accounts that sign in by munge (`trainyard login`), `user` or `viewer`. Default: nobody can."""
    munge_group: str = ""
    """Unix group whose members alone can sign in by munge. Default: every account of the cluster."""
    munge_admin_group: str = ""
    """Unix group whose members sign in by munge as administrators. Default: none."""
    munge_min_uid: Annotated[int, Field(ge=1)] = 1000
    """Smallest uid that can sign in by munge; the accounts of daemons have smaller uids."""
    munge_token_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days until a token of a sign-in by munge expires."""
    munge_socket: Path | None = None
    """Socket of munged on the service's machine; default: the socket that munge was built with."""
    rate_per_second: Annotated[float, Field(gt=0)] = 100.0
    """Sustained request rate per token, or per address for requests without a valid token, in each process of the API;
    more get 429."""
    rate_burst: Annotated[int, Field(ge=1)] = 1000
    """Maximum burst per token or address, in requests."""
    worker_rate_per_second: Annotated[float, Field(gt=0)] = 1000.0
    """Sustained request rate per attempt token."""
    worker_rate_burst: Annotated[int, Field(ge=1)] = 5000
    """Maximum burst per attempt token, in requests."""
    max_connections: Annotated[int, Field(ge=1)] = 4000
    """Maximum number of open connections. A further connection replaces the connection whose client has read nothing,
    or sent no request, for longest. It is lowered to the process's hard limit of open files, less 256."""
    max_connections_per_address: Annotated[int, Field(ge=1)] = 1000
    """Maximum number of open connections per IPv4 address or IPv6 /64 network; further connections are closed. Loopback
    and TRUSTED_PROXIES, behind which there are many clients, are exempt."""
    max_gpus_per_user: Annotated[int | None, Field(ge=1)] = None
    """Maximum number of GPUs of a user's submitted jobs; further jobs wait in `queued`. Default: no limit."""
    max_gpus_per_admin: Annotated[int | None, Field(ge=1)] = None
    """The same limit for jobs that an administrator submitted."""
    default_project: Literal["none", "user"] = "none"
    """The project of a job whose spec names none. `user`: the name of its user."""
    max_queued_per_user: Annotated[int | None, Field(ge=1)] = 10_000
    """Maximum number of a user's `queued` jobs; further jobs are rejected."""
    file_quota_gb_per_user: Annotated[float, Field(ge=0)] = 50.0
    """Maximum size of a user's uploaded data files, in GiB; further uploads are rejected. Unfinished uploads count with
    their whole size. 0: no limit."""
    max_file_gb: Annotated[float, Field(gt=0)] = 10.0
    """Maximum size of an uploaded data file, in GiB."""
    max_sweep_members: Annotated[int, Field(ge=1, le=1000)] = 200
    """Maximum number of jobs in a sweep."""
    models_file: Path | None = None
    """File with the base models that clients of OpenAI's API can fine-tune; default: `models.yaml` in the state
    directory. `docs/openai.md` describes it."""
    webhook_allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Hosts whose webhooks may use http and private addresses, comma-separated: `name:port`, or `name` with all its
    ports. Other hosts are reached by https on ports 443 and 80 alone."""
    disabled_plugins: Annotated[tuple[str, ...], NoDecode] = ()
    """Parts of the service that are switched off, comma-separated: `mlflow`, `oidc`, `openai`, `planner`, `registry`,
    `sweeps`, `webhooks`."""
    session_hours: Annotated[float, Field(gt=0)] = 168.0
    """Lifetime of a browser session; it also ends with its token."""
    audit_retention_days: Annotated[int, Field(ge=1)] = 365
    """Retention of audit entries."""
    code_retention_days: Annotated[int, Field(ge=1)] = 7
    """Retention of uploaded code that no job refers to."""
    upload_retention_hours: Annotated[int, Field(ge=1)] = 24
    """How long an unfinished upload waits for its next part. Contents of files that nothing refers to are removed after
    the same time."""
    delivery_retention_days: Annotated[int, Field(ge=1)] = 30
    """Retention of webhook deliveries."""
    body_limit: int = 1024 * 1024
    """Maximum size of a worker's report in bytes; log appends have their own limit, and users' requests are limited to
    256 KiB."""
    low_disk_gb: Annotated[float, Field(ge=0)] = 5.0
    """Free space of the runs directory, in GiB, below which running jobs get a warning."""
    quota_gb_per_user: Annotated[float | None, Field(gt=0)] = None
    """Maximum disk use of a user's jobs, in GiB; beyond it new jobs are rejected. Default: no limit."""
    max_streams: Annotated[int, Field(ge=1)] = 1000
    """Maximum number of open live streams; further streams get 429."""
    max_streams_per_user: Annotated[int, Field(ge=1)] = 100
    """Maximum number of open live streams per user."""
    metrics_retention_days: Annotated[int | None, Field(ge=1)] = None
    """How long after its end a job keeps every metric point;
    later only the downsampled points remain. Default: forever."""
    ingest_limit: Annotated[int, Field(ge=1024 * 1024)] = 64 * 1024 * 1024
    """Maximum number of bytes of reported points that wait to be written; beyond it workers get 429."""
    log_limit: int = 64 * 1024 * 1024
    """Maximum number of bytes of a rank's log in the database; the newest bytes remain."""
    log_disk_limit: Annotated[int, Field(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """Maximum size in bytes of a rank's log file, on filesystems that can deallocate the beginning of a file."""
    log_format: Literal["console", "json"] = "console"
    """Form of the service's log: text, or a JSON object on each line."""

    @model_validator(mode="before")
    @classmethod
    def _split_lists(cls, values: dict[str, object]) -> dict[str, object]:
        for name in _LIST_SETTINGS:
            text = values.get(name)
            if isinstance(text, str):
                values[name] = tuple(part.strip() for part in text.split(",") if part.strip())
        return {name: value for name, value in values.items() if name != "worker_ca_file" or value}

    @field_validator("allowed_roots")
    @classmethod
    def _absolute_roots(cls, roots: tuple[str, ...]) -> tuple[str, ...]:
        for root in roots:
            if not Path(root).is_absolute() or ".." in Path(root).parts:
                raise ValueError(f"`{root}` is not an absolute path without `..`")
        return roots

    @field_validator("site_setup", "modules_init")
    @classmethod
    def _absolute_file(cls, path: Path | None) -> Path | None:
        if path is not None and not path.is_absolute():
            raise ValueError(f"`{path}` is not an absolute path")
        return path

    @field_validator("allowed_variables")
    @classmethod
    def _variable_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not re.fullmatch(r"[A-Z_][A-Z0-9_]*|[A-Z][A-Z0-9]*_\*", name):
                raise ValueError(f"`{name}` is neither an uppercase name nor a prefix such as WANDB_*")
        return names

    @field_validator("job_environment")
    @classmethod
    def _inheritable_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        require_inheritable(names)
        return names

    @field_validator("munge_group", "munge_admin_group")
    @classmethod
    def _group_with_role(cls, group: str, info: ValidationInfo) -> str:
        if group and not info.data.get("munge_role"):
            raise ValueError("has no effect without TRAINYARD_MUNGE_ROLE")
        return group

    @field_validator("gpu_memory_gb")
    @classmethod
    def _known_sizes(cls, text: str) -> str:
        parse_gpu_memory(text)
        return text

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: str) -> str:
        if url and not url.startswith(("sqlite:///", "postgresql://", "postgres://", "postgresql+psycopg://")):
            raise ValueError("must be sqlite:///<file> or postgresql://<user>@<host>/<database>")
        return url

    @property
    def file_quota_bytes(self) -> int | None:
        """Quota of a user's data files in bytes; None: no limit."""
        return int(self.file_quota_gb_per_user * GIB) or None

    @property
    def file_limit_bytes(self) -> int:
        return int(self.max_file_gb * GIB)

    @property
    def state(self) -> Path:
        return self.state_dir.expanduser().absolute()

    @property
    def runs(self) -> Path:
        return (self.runs_dir or self.state / "runs").expanduser().absolute()

    @property
    def restore_marker(self) -> Path:
        """A file that whoever restores an older database creates before the service starts."""
        return self.runs / ".restored"

    @property
    def umask(self) -> int:
        """The permissions that new files and folders do not get."""
        return 0o027 if self.runs_group_readable or self.run_as == "owner" else 0o077

    @property
    def url(self) -> str:
        """The database URL with an installed driver and the password.

        Raises:
            ServiceError: the password file cannot be read, or is readable by others.
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
        return int(self.low_disk_gb * GIB)

    @property
    def quota_bytes(self) -> int | None:
        """Disk quota of a user in bytes; None: no limit."""
        return int(self.quota_gb_per_user * GIB) if self.quota_gb_per_user is not None else None

    @property
    def known_accelerator(self) -> Accelerator | None:
        """Accelerator of all workers; None: it depends on the partition."""
        if self.accelerator != "auto":
            return self.accelerator
        if self.backend == "slurm":
            return None
        return "cuda" if has_gpu() else "cpu"

    @property
    def _own_files(self) -> tuple[str, ...]:
        """The state folder, and the service's files that may be elsewhere."""
        database = sa.make_url(self.database_url).database if self.database_url.startswith("sqlite:") else None
        # SQLite writes the newest rows into files beside the database.
        parts = [f"{database}{suffix}" for suffix in ("", "-wal", "-shm", "-journal")] if database else []
        secrets = (self.admin_token_file, self.database_password_file, self.secrets_key_file)
        files = (*secrets, self.oidc_client_secret_file, *parts)
        return (str(self.state), *(str(Path(file).expanduser().absolute()) for file in files if file))

    @property
    def site(self) -> Site:
        # Where jobs run as their owners, the service can read runs that a user cannot.
        private_runs = self.run_as == "owner"
        return Site(
            accelerator=self.known_accelerator,
            scheduler=self.backend,
            roots=(*self.allowed_roots, *(() if private_runs else (str(self.runs),))),
            runs=None if private_runs else str(self.runs),
            excluded_roots=(*self._own_files, *((str(self.runs),) if private_runs else ())),
            container_runtime=self.container_runtime,
            container_images=self.container_images,
            gpus_per_node=self.slurm_gpus_per_node,
            sbatch_options=parse_option_names(self.slurm_allowed_options),
            fixed_options=frozenset(parse_sbatch_options(self.slurm_extra_options)),
            slots=self.local_slots if self.backend == "local" else None,
        )


def has_gpu(devices: Path = Path("/dev")) -> bool:
    """Return whether there is a GPU's device file; in a container its number may be any."""
    return any(path.name.removeprefix("nvidia").isdecimal() for path in devices.glob("nvidia*"))


_OTHERS = frozenset({"URL", "TOKEN", "PYTHON", "DEBUG", "BIND", "PORTS", "UID", "GID"})
"""Variables with our prefix that are no settings: of the command line, and of the files for Docker."""


def unknown_variables(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each variable that is no setting, with the setting that it resembles, or an empty text.

    Variables of a job are left out: a service may be started from a job.
    """
    known = {field.upper() for field in Settings.model_fields}
    ours = [name for name in names if name.startswith(_PREFIX)]
    in_job = ATTEMPT_VARIABLE in ours
    for name in ours:
        bare = name.removeprefix(_PREFIX)
        near = get_close_matches(bare, known, 1, _SIMILARITY)
        if bare not in known | _OTHERS and (near or not in_job):
            yield name, _PREFIX + near[0] if near else ""
