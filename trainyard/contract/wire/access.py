"""API tokens, the audit log and webhooks: request bodies and resources."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainyard.contract.base import (
    EXAMPLE_ATTEMPT,
    EXAMPLE_JOB,
    EXAMPLE_LATER,
    EXAMPLE_TIME,
    Resource,
    SecretValue,
    Strict,
    Timestamp,
    example,
    reject_bool,
)
from trainyard.contract.validation_messages import USER_NAME_PATTERN
from trainyard.contract.wire.jobs import JobStatus

Role = Literal["admin", "user", "viewer"]

UserName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=USER_NAME_PATTERN)]
"""Name of a user. Jobs belong to names: two tokens with the same name are the same user."""


TOKEN_DAYS = 90
"""Days until a token expires, where the page, the command line and the client are given no number."""


class TokenRequest(Strict):
    """The body of `POST /v1/tokens`."""

    model_config = example(role="user", expires_in_days=90)

    name: UserName
    role: Role = "user"
    """`admin`: everything. `user`: read all jobs, change own jobs. `viewer`: read only."""
    expires_in_days: Annotated[int, Field(ge=1, le=3650), BeforeValidator(reject_bool)] | None = None
    """Days until the token expires. Absent: it does not expire."""
    may_run_code: bool = False
    """Permit `custom` and `script` jobs, which run code as the service's account, even if the role does not permit
    them (TRAINYARD_CODE_ROLES)."""

    @model_validator(mode="after")
    def _viewers_cannot_run_code(self) -> Self:
        if self.role == "viewer" and self.may_run_code:
            raise ValueError("`may_run_code` has no effect for the role `viewer`, which cannot submit jobs")
        return self


class TokenResource(Resource):
    """A token without its secret."""

    model_config = example(role="user", may_run_code=False, created_by="admin")

    object: Literal["token"] = "token"
    id: str
    name: str
    role: Role
    may_run_code: bool = False
    """Whether the token or its role permits code."""
    created_by: str | None = None
    created_at: Timestamp
    last_used_at: Timestamp | None = None
    """Time of the last request, accurate to a minute."""
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    unix_uid: int | None = None
    """Uid of the Unix account, if the token is of a sign-in by munge."""


class UnixUserResource(Resource):
    """A user whose name belongs to a Unix account."""

    model_config = example(uid=4711)

    object: Literal["unix_user"] = "unix_user"
    name: str
    uid: int
    created_at: Timestamp


class NewTokenResource(TokenResource):
    """A new token with its secret, which is returned only once."""

    token: str = Field(examples=["ty_0123456789abcdef_secret"])
    """The secret; only its hash is stored."""


class SecretRequest(Strict):
    """The body of `PUT /v1/secrets/{secret_name}`."""

    model_config = example(value="...")

    value: Annotated[SecretValue, Field(repr=False)]
    """The value of the environment variable."""


class SecretResource(Resource):
    """A secret without its value, which no route returns."""

    model_config = example(name="HF_TOKEN", updated_at=EXAMPLE_LATER)

    object: Literal["secret"] = "secret"
    name: str
    """Name of the secret, and of the environment variable that has its value."""
    created_at: Timestamp
    updated_at: Timestamp


class AuditResource(Resource):
    """One requested change and its outcome."""

    model_config = example(
        id="aud_12",
        actor="anna",
        token_id=EXAMPLE_ATTEMPT,
        role="user",
        action="cancel_job",
        target=EXAMPLE_JOB,
        address="192.0.2.7",
        request_id="req_01kdvdna00az9cxjnszk8v8abh",
    )

    object: Literal["audit_entry"] = "audit_entry"
    id: str
    created_at: Timestamp
    actor: str
    """The user, `service` for changes by the service itself, or `anonymous`."""
    token_id: str | None = None
    role: str | None = None
    action: str
    """The operation's id in the OpenAPI document, such as `cancel_job`."""
    target: str | None = None
    """The changed resource, such as a job's id."""
    address: str | None = None
    request_id: str | None = None
    outcome: Literal["done", "refused", "failed"]
    status: int | None = None
    """HTTP status of the response, if it was not successful."""
    detail: dict[str, Any] = Field(default_factory=dict)


WebhookFormat = Literal["trainyard", "slack"]
"""`trainyard`: the event with its job. `slack`: `{"text": ...}`, as Slack, Mattermost and gateways to mail take it."""


class WebhookRequest(Strict):
    """The body of `POST /v1/webhooks`."""

    model_config = example(url="https://example.org/hook", statuses=["succeeded", "failed"])

    url: Annotated[str, StringConstraints(min_length=8, max_length=2000)]
    """`https://...`; other addresses only if an administrator has allowed the host."""
    statuses: Annotated[tuple[JobStatus, ...], Field(max_length=11)] = ()
    """Notify only of these statuses. Empty: all."""
    jobs: Literal["own", "all"] = "own"
    """Notify of the creator's jobs, or of all jobs."""
    format: WebhookFormat = "trainyard"
    """The form of the messages: the event with its job, or a text for people, with a link."""


class WebhookResource(Resource):
    """A webhook without its secret."""

    model_config = example(
        id="whk_01kdvdna00az9cxjnszk8v8abh",
        url="https://example.org/hook",
        statuses=["succeeded", "failed"],
        failures=0,
    )

    object: Literal["webhook"] = "webhook"
    id: str
    url: str
    statuses: list[JobStatus]
    jobs: Literal["own", "all"]
    format: WebhookFormat = "trainyard"
    created_by: str
    created_at: Timestamp
    disabled_at: Timestamp | None = None
    """When it was disabled after repeated failures; a successful test enables it again."""
    failures: int = 0
    """Number of consecutive failed deliveries."""


class NewWebhookResource(WebhookResource):
    """A new webhook with its secret, which is returned only once."""

    secret: str = Field(examples=["whsec_c2VjcmV0"])
    """The key that signs messages."""


class DeliveryResource(Resource):
    """One message to a webhook."""

    model_config = example(
        id="dlv_01kdvdna00az9cxjnszk8v8abh",
        webhook_id="whk_01kdvdna00az9cxjnszk8v8abh",
        type="job.status",
        job_id=EXAMPLE_JOB,
        state="delivered",
        delivered_at=EXAMPLE_TIME,
        answer_status=204,
    )

    object: Literal["delivery"] = "delivery"
    id: str
    """Equal for all attempts of a delivery, as in the header `webhook-id`, to detect duplicates."""
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
