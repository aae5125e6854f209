"""Tokens, the audit and webhooks: what people send about them and what the service answers."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainyard.contract.base import Resource, Strict, Timestamp, reject_bool
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.jobs import JobStatus

Role = Literal["admin", "user", "viewer"]

UserName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=USER_NAME_PATTERN)]
"""Who holds a token. Jobs belong to names: two tokens of one name are one person."""


class TokenRequest(Strict):
    """The body of `POST /v1/tokens`."""

    name: UserName
    role: Role = "user"
    """`admin`: everything; `user`: sees all jobs and changes their own; `viewer`: only sees."""
    expires_in_days: Annotated[int, Field(ge=1, le=3650), BeforeValidator(reject_bool)] | None = None
    """Absent: until it is revoked."""
    may_run_code: bool = False
    """Whether it may submit `custom` and `script` jobs, which run code as the service's account, though its role may
    not (TRAINYARD_CODE_ROLES)."""

    @model_validator(mode="after")
    def _viewers_run_nothing(self) -> Self:
        if self.role == "viewer" and self.may_run_code:
            raise ValueError("a viewer submits nothing, and `may_run_code` would have no effect")
        return self


class TokenResource(Resource):
    """A token without its secret."""

    object: Literal["token"] = "token"
    id: str
    name: str
    role: Role
    may_run_code: bool = False
    """By itself or by its role."""
    created_by: str | None = None
    created_at: Timestamp
    last_used_at: Timestamp | None = None
    """To the minute."""
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None


class NewTokenResource(TokenResource):
    """A token as it is shown once, to whoever made it."""

    token: str
    """The secret; only its hash is kept."""


class AuditResource(Resource):
    """One change that somebody asked for, and what came of it."""

    object: Literal["audit_entry"] = "audit_entry"
    id: str
    created_at: Timestamp
    actor: str
    """The name on the token, `service` for what the service did by itself, or `anonymous`."""
    token_id: str | None = None
    role: str | None = None
    action: str
    """The operation's id in the OpenAPI document, such as `cancel_job`."""
    target: str | None = None
    """What it was about, such as a job's id."""
    address: str | None = None
    request_id: str | None = None
    outcome: Literal["done", "refused", "failed"]
    status: int | None = None
    """Of the answer, where it was no success."""
    detail: dict[str, Any] = Field(default_factory=dict)


class WebhookRequest(Strict):
    """The body of `POST /v1/webhooks`."""

    url: Annotated[str, StringConstraints(min_length=8, max_length=2000)]
    """`https://...`; other addresses only where an administrator allows the host."""
    statuses: Annotated[tuple[JobStatus, ...], Field(max_length=11)] = ()
    """Told when a job takes one of these; empty: any."""
    jobs: Literal["own", "all"] = "own"
    """Those of the webhook's creator, or everyone's."""


class WebhookResource(Resource):
    """A webhook without its secret."""

    object: Literal["webhook"] = "webhook"
    id: str
    url: str
    statuses: list[JobStatus]
    jobs: Literal["own", "all"]
    created_by: str
    created_at: Timestamp
    disabled_at: Timestamp | None = None
    """Since it did not answer for long; a test that arrives enables it again."""
    failures: int = 0
    """In a row, so far."""


class NewWebhookResource(WebhookResource):
    """A webhook as it is shown once, to whoever made it."""

    secret: str
    """What its messages are signed with."""


class DeliveryResource(Resource):
    """One message to a webhook."""

    object: Literal["delivery"] = "delivery"
    id: str
    """The same at every attempt, as the header `webhook-id`: what came twice is known by it."""
    webhook_id: str
    type: str
    """`job.status` or `test`."""
    job_id: str | None = None
    created_at: Timestamp
    state: Literal["waiting", "delivered", "given_up"]
    attempts: int
    next_at: Timestamp | None = None
    delivered_at: Timestamp | None = None
    answer_status: int | None = None
    error: str | None = None
