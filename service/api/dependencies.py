"""The application state, and the dependencies of routes: its parts, the caller and common query parameters."""

import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from fastapi import Path as PathParam
from fastapi.dependencies.models import Dependant
from pydantic import BeforeValidator

from service.api.query_params import refuse_unknown
from service.api.rate_limits import Rate, RateLimiter
from service.as_owner.calls import owner_calls
from service.audit.log import CURRENT_REQUEST, AuditLog
from service.auth.munge import UnmungeProgram
from service.auth.principals import Principal, authenticate
from service.auth.sessions import CSRF_HEADER, Cookie, require_csrf
from service.auth.sign_in import MungeSignIn
from service.auth.unix_accounts import AccountLookup, NameService
from service.checkpoints.listings import FileListings
from service.code.service import require_code_role
from service.core.clock import Clock
from service.core.errors import AuthenticationError, InvalidRequestError, NotFoundError, PermissionDeniedError
from service.core.failpoints import Failpoint, no_failpoint
from service.core.observability import ServiceMetrics
from service.core.process_pool import ProcessPool
from service.core.settings import Settings
from service.core.thread_slots import ThreadSlots
from service.core.timed_cache import TimedCache
from service.core.untrusted_files import UntrustedFiles, files_of_job
from service.db.engine import Database
from service.db.models import Job
from service.db.paging import PageRequest
from service.db.visibility import show_jobs_to
from service.files.service import FileService
from service.jobs.quota import UserQuotas
from service.jobs.service import require_change
from service.metrics.downsampling.downsampler import Downsampler
from service.metrics.ingest.batch_queue import IngestQueue
from service.metrics.ingest.worker_tokens import WorkerTokenCache
from service.metrics.ingest.writer import PointWriter
from service.run_files.files import RunFiles, make_run_files
from service.secrets.service import SecretService
from service.specs.acceptance import ModelAdvisor, NoAdvisor, SpecAcceptance
from service.streaming.broadcaster import Broadcaster
from service.streaming.sources import GlobalSource
from trainyard.contract.base import Timestamp
from trainyard.contract.layout import RunLayout

_PATHS_OF_PROJECTS = (
    *("/v1/jobs", "/v1/job-keys", "/v1/projects", "/v1/code", "/v1/templates", "/v1/usage", "/v1/stream"),
    *("/v1/compare", "/v1/media", "/v1/tokens/self", "/v1/cluster"),
)
"""Routes for project tokens: they return jobs, or no data of users."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


class AppState:
    """The parts of a process that routes use. `main.py` sets the notifications; tests replace other parts."""

    def __init__(self, settings: Settings, database: Database, clock: Clock) -> None:
        self.settings = settings
        self.database = database
        self.clock = clock
        self.notify_reconciler: Callable[[], None] = _do_nothing
        """Wakes the reconciler, and tasks of plugins that wait for jobs; a lost notification only costs time."""
        self.notify_cleanup: Callable[[], None] = _do_nothing
        """Wakes the maintenance task to delete files."""
        self.file_listings = FileListings()
        self.plugin_parts: dict[str, Any] = {}
        """What the routes and the background tasks of a plugin share, by its name."""
        self.metrics = ServiceMetrics()
        self.failpoint: Failpoint = no_failpoint
        self.process_pool = ProcessPool()
        self.user_slots = ThreadSlots(each=4, total=12)
        self.worker_slots = ThreadSlots(each=4, total=12, is_repeated=True)
        self.sign_in_slots = ThreadSlots(each=2, total=4)
        self.curve_slots = ThreadSlots(each=2, total=3)
        self.advisor: ModelAdvisor = NoAdvisor()
        self.secrets = SecretService(database, settings)
        self.files = FileService(database, settings, lambda label: self.failpoint(label))
        self.downsampler = Downsampler(database)
        self.ingest_queue = IngestQueue(
            PointWriter(database, self.downsampler.on_commit), lambda: self.clock(), limit_bytes=settings.ingest_limit
        )
        self.global_source = GlobalSource(database, settings.runs, lambda: self.clock())
        self.broadcaster = Broadcaster(limit=settings.max_streams, owner_limit=settings.max_streams_per_user)
        self.accounts: AccountLookup = NameService()
        self.owners = owner_calls(settings)
        """Acts as the owners of jobs; None where all jobs run as the service."""
        self.munge_sign_in = MungeSignIn(database, settings, UnmungeProgram(settings.munge_socket), self.accounts)
        self.worker_tokens = WorkerTokenCache(partial(authenticate, database))
        self.audit_log = AuditLog(database, lambda: self.clock())
        self.metrics_page: TimedCache[bytes] = TimedCache(timedelta(seconds=1))
        self.database_check: TimedCache[None] = TimedCache(timedelta(seconds=1))
        """A successful write; every caller of `/readyz` may cause a write, which costs an fsync."""
        self.rate_limiter = RateLimiter(Rate(settings.rate_per_second, settings.rate_burst))
        self.address_rate_limiter = RateLimiter(Rate(settings.rate_per_second, settings.rate_burst))
        self.sign_in_rate_limiter = RateLimiter(Rate(settings.rate_per_second / 100, max(1, settings.rate_burst // 33)))
        """Limits sign-ins by munge by address: each starts a process and writes rows before authentication."""
        self.worker_rate_limiter = RateLimiter(Rate(settings.worker_rate_per_second, settings.worker_rate_burst))
        database.after_commit += [self.global_source.on_commit, self.broadcaster.on_commit]
        database.before_commit = self.audit_log.add_entry

    @property
    def run_files(self) -> RunFiles:
        """The folders of runs, changed with the rights of the jobs that own them."""
        return make_run_files(self.settings.runs, self.owners)

    @property
    def acceptance(self) -> SpecAcceptance:
        """Accepts the specs of requests and of stored jobs."""
        return SpecAcceptance(self.database, self.settings, self.advisor)

    @property
    def cookie(self) -> Cookie:
        """The session cookie; secure if users reach the service by https."""
        return Cookie(secure=self.settings.service_url.startswith("https:"), path=self.settings.base_path or "/")

    @property
    def quotas(self) -> UserQuotas:
        """The quotas of a user."""
        return UserQuotas(
            gpus=self.settings.max_gpus_per_user,
            admin_gpus=self.settings.max_gpus_per_admin,
            queued=self.settings.max_queued_per_user,
            disk_bytes=self.settings.quota_bytes,
        )

    def run_layout(self, job_id: str) -> RunLayout:
        return RunLayout(self.settings.runs / job_id)

    def files_of(self, job: Job) -> UntrustedFiles:
        """Return access to the files of a job's run directory."""
        return files_of_job(self.settings, job.unix_uid)


def _do_nothing() -> None:
    """Notify nobody: no background service runs in this process."""


# Lookups are `async`: FastAPI would run a plain function in a thread.
async def get_app_state(request: Request) -> AppState:
    app_state: AppState = request.app.state.app_state
    return app_state


AppStateDep = Annotated[AppState, Depends(get_app_state)]


async def get_now(app_state: AppStateDep) -> datetime:
    return app_state.clock()


NowDep = Annotated[datetime, Depends(get_now)]


@dataclass(frozen=True)
class Caller:
    """The authenticated caller of a request."""

    principal: Principal
    secret: str | None = None
    """The secret of the browser session, if the caller was authenticated by its cookie."""


def get_caller(request: Request) -> Caller:
    """Return the caller that the middleware has authenticated.

    Raises:
        AuthenticationError: the request has no valid token or session.
    """
    caller: Caller | None = getattr(request.state, "caller", None)
    if caller is None:
        raise AuthenticationError
    return caller


def get_present_secret(request: Request) -> str | None:
    """Return the secret of the browser session of a request; None without a session."""
    caller: Caller | None = getattr(request.state, "caller", None)
    return caller.secret if caller is not None else None


class CallerCheck:
    """A dependency that returns the user of a request: an API token or a browser session whose role permits the route.

    Routes call it before they read the query and the body, and FastAPI calls it again to pass on the user.
    """

    def __init__(
        self, require: Callable[[Principal, Settings], None] = lambda user, settings: None, *, any_query: bool = False
    ):
        """
        Args:
            require: Raises PermissionDeniedError for users whom the route refuses, whatever they send.
            any_query: The query may have unknown parameters.
        """
        self._require = require
        self._any_query = any_query

    async def __call__(self, request: Request) -> Principal:
        """Return the user.

        Raises:
            AuthenticationError: the request has no valid token or session.
            PermissionDeniedError: it has an attempt token, or a session without the CSRF token, or the role is refused.
            InvalidRequestError: the query has unknown parameters.
        """
        user = _user_of(request)
        self._require(user, request.app.state.app_state.settings)
        if not self._any_query:
            refuse_unknown(request)
        return user


def _user_of(request: Request) -> Principal:
    caller = get_caller(request)
    principal = caller.principal
    set_audit_caller(request, principal)
    if caller.secret is not None and request.method not in SAFE_METHODS:
        require_csrf(caller.secret, request.headers.get(CSRF_HEADER))
    if principal.kind != "user":
        raise PermissionDeniedError("an attempt token is valid only for the routes of its attempt")
    require_path_of_project(request, principal)
    restrict_to_visible_jobs(request, principal)
    return principal


def restrict_to_visible_jobs(request: Request, user: Principal) -> None:
    """Hide from a user the jobs of private projects, and where jobs run as their owners, all jobs of other users."""
    settings: Settings = request.app.state.app_state.settings
    show_jobs_to(user.reader(own_only=settings.run_as == "owner"))


def require_path_of_project(request: Request, user: Principal) -> None:
    """Refuse a project token on routes that have other data than jobs.

    Raises:
        PermissionDeniedError: the route is none of these.
    """
    plugins = request.app.state.plugins
    paths = (*_PATHS_OF_PROJECTS, *(path for plugin in plugins for path in plugin.project_paths))
    path = request.scope["path"]
    if user.project is None or any(path == one or path.startswith(f"{one}/") for one in paths):
        return
    message = f"the token is valid only for the jobs of the project {user.project!r}; use another token"
    raise PermissionDeniedError(message, code="project_token")


def set_audit_caller(request: Request, principal: Principal) -> None:
    """Set the caller, action and target of the request's audit entry."""
    context = CURRENT_REQUEST.get()
    if context is not None:
        context.actor, context.token_id, context.role = principal.name, principal.id, principal.role
        context.action = getattr(request.scope.get("route"), "operation_id", None) or request.method
        context.target = "/".join(str(value) for value in request.path_params.values()) or None


def _require_editor(user: Principal, _settings: Settings) -> None:
    require_change(user)


def _require_admin(user: Principal, _settings: Settings) -> None:
    if user.role != "admin":
        raise PermissionDeniedError("requires the role admin", code="admin_required")


def code_role(what: str) -> CallerCheck:
    """Return the check of routes for users who may run their own code; `what` begins the message for others."""
    return CallerCheck(lambda user, settings: require_code_role(user, settings.code_roles, what))


UserDep = Annotated[Principal, Depends(CallerCheck())]
"""Every user, viewers included."""
EditorDep = Annotated[Principal, Depends(CallerCheck(_require_editor))]
"""Every user but viewers."""
AdminDep = Annotated[Principal, Depends(CallerCheck(_require_admin))]
LenientUserDep = Annotated[Principal, Depends(CallerCheck(any_query=True))]
LenientEditorDep = Annotated[Principal, Depends(CallerCheck(_require_editor, any_query=True))]

_ATTEMPT_ID = r"^[0-9a-f]{16}$"
AttemptId = Annotated[str, PathParam(pattern=_ATTEMPT_ID, description="Id of the attempt.")]
JobId = Annotated[str, PathParam(description="Id of the job: `job_...`.")]


def require_worker(request: Request, attempt_id: str) -> Principal:
    """Return the caller, which must be the worker of this attempt.

    Raises:
        PermissionDeniedError: the token belongs to another attempt or to a user.
        InvalidRequestError: the query has unknown parameters.
    """
    principal = get_caller(request).principal
    if principal.kind != "worker" or principal.id != attempt_id:
        raise PermissionDeniedError("the token does not belong to this attempt")
    refuse_unknown(request)
    return principal


class WorkerCheck:
    """A dependency that returns the worker of a request, which must belong to the attempt in the path."""

    async def __call__(self, request: Request) -> Principal:
        attempt_id: str = request.path_params["aid"]
        if not re.fullmatch(_ATTEMPT_ID, attempt_id):
            raise NotFoundError(f"there is no attempt {attempt_id!r}", code="attempt_not_found", param="aid")
        return require_worker(request, attempt_id)


WorkerDep = Annotated[Principal, Depends(WorkerCheck())]


def caller_checks(dependant: Dependant) -> Iterator[CallerCheck | WorkerCheck]:
    """Yield the checks of the caller among the dependencies of a route."""
    for dependency in dependant.dependencies:
        if isinstance(dependency.call, CallerCheck | WorkerCheck):
            yield dependency.call
        yield from caller_checks(dependency)


def after_query(pattern: str, *, max_length: int = 64) -> Any:
    """Return the query parameter for the id after which a page starts.

    The pattern is only documented: `window_of` reports a mismatch better than pydantic.
    """
    description = "`last_id` of the previous page."
    return Query(max_length=max_length, description=description, json_schema_extra={"pattern": pattern})


def window_of(
    pattern: str, *, order: Literal["asc", "desc"] = "desc", key: str = "time of creation"
) -> Callable[..., Awaitable[PageRequest]]:
    """Return the dependency for the page parameters of a list whose ids match the pattern.

    Args:
        order: The default order.
        key: The sort key of the list.
    """
    default_order = order

    async def get_window(
        limit: Annotated[int, Query(ge=1, le=200, description="Maximum number of results.")] = 20,
        after: Annotated[str | None, after_query(pattern)] = None,
        order: Annotated[Literal["asc", "desc"], Query(description=f"By {key}.")] = default_order,
    ) -> PageRequest:
        check_after(after, pattern)
        return PageRequest(limit=limit, after=after, descending=order == "desc")

    return get_window


def check_after(after: str | None, pattern: str) -> None:
    """Check the id after which a page of a list starts.

    Raises:
        InvalidRequestError: the id is none of the list.
    """
    if after is not None and not re.fullmatch(pattern, after):
        raise InvalidRequestError(f"{after!r} is not an id of this list", param="after")


ID_OF_FILE = r"^file_[0-9a-z]{26}$"
ID_OF_TOKEN = r"^[0-9a-f]{8,16}$"  # noqa: S105 - a pattern
ID_OF_AUDIT = r"^aud_[0-9]{1,18}$"
JobWindowDep = Annotated[PageRequest, Depends(window_of(r"^job_[0-9a-z]{26}$"))]
FileWindowDep = Annotated[PageRequest, Depends(window_of(ID_OF_FILE))]
UploadWindowDep = Annotated[PageRequest, Depends(window_of(r"^upl_[0-9a-z]{26}$"))]
AttemptWindowDep = Annotated[PageRequest, Depends(window_of(r"^[0-9a-f]{16}$", order="asc", key="number"))]
CheckpointWindowDep = Annotated[PageRequest, Depends(window_of(r"^ckpt_[0-9a-z]{26}$", order="asc", key="step"))]
EventWindowDep = Annotated[PageRequest, Depends(window_of(r"^evt_[0-9]{1,18}$"))]
TokenWindowDep = Annotated[PageRequest, Depends(window_of(ID_OF_TOKEN))]
AuditWindowDep = Annotated[PageRequest, Depends(window_of(ID_OF_AUDIT))]

_TIME_ZONE_AFTER_SPACE = re.compile(r"(:[0-9.]+) ([0-9]{2}:?[0-9]{2})$")


def _restore_plus(value: Any) -> Any:
    """Restore a `+` before the time zone: unescaped in a query, it is decoded as a blank."""
    return _TIME_ZONE_AFTER_SPACE.sub(r"\1+\2", value) if isinstance(value, str) else value


QueryTimestamp = Annotated[Timestamp, BeforeValidator(_restore_plus)]
"""A time in a query: RFC 3339 with a time zone."""

CreatedByQuery = Annotated[str | None, Query(max_length=128, description="Submitted by this user.")]
AttemptNumberQuery = Annotated[int | None, Query(ge=1, le=1_000_000, description="Default: the newest attempt.")]
