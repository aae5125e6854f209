"""API tokens, the audit log and webhooks: request bodies and resources."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from trainyard.contract.base import (
    EXAMPLE_ATTEMPT,
    EXAMPLE_JOB,
    EXAMPLE_LATER,
    EXAMPLE_TIME,
    DisplayName,
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
"""Default number of days until a token expires, for the page, the command line and the client."""


class TokenRequest(Strict):
    """The body of `POST /v1/tokens`."""

    model_config = example(expires_in_days=90)

    name: UserName
    role: Role = Field(default="user", examples=["user"])
    """`admin`: everything. `user`: read all jobs, change own jobs. `viewer`: read only."""
    expires_in_days: Annotated[int, Field(ge=1, le=3650), BeforeValidator(reject_bool)] | None = None
    """Days until the token expires. Absent: it does not expire."""
    may_run_code: bool = False
    """Permit `custom` and `script` jobs, which run code as the service's account, even if the role does not permit
    them (TRAINYARD_CODE_ROLES)."""

    project: DisplayName | None = None
    """A created project for which alone the token is valid. Absent: it is valid for all that its role permits."""

    @model_validator(mode="after")
    def _administrators_have_no_project(self) -> Self:
        if self.project is not None and self.role == "admin":
            raise ValueError("`project` is for tokens of the roles `user` and `viewer`")
        return self

    @model_validator(mode="after")
    def _viewers_cannot_run_code(self) -> Self:
        if self.role == "viewer" and self.may_run_code:
            raise ValueError("`may_run_code` has no effect for the role `viewer`, which cannot submit jobs")
        return self


class TokenResource(Resource):
    """A token without its secret."""

    object: Literal["token"] = "token"
    id: str
    name: str
    role: Role = Field(examples=["user"])
    may_run_code: bool = Field(default=False, examples=[False])
    """Whether the token or its role permits code."""
    project: str | None = Field(default=None, examples=["zoo"])
    """The project for which alone it is valid; null: it is valid for everything that its role permits."""
    created_by: str | None = Field(default=None, examples=["admin"])
    created_at: Timestamp
    last_used_at: Timestamp | None = None
    """Time of the last request, accurate to a minute."""
    expires_at: Timestamp | None = None
    revoked_at: Timestamp | None = None
    unix_uid: int | None = None
    """Uid of the Unix account, if the token comes from a sign-in by munge."""


class UnixUserResource(Resource):
    """A user whose name belongs to a Unix account."""

    object: Literal["unix_user"] = "unix_user"
    name: str
    uid: int = Field(examples=[4711])
    created_at: Timestamp


class NewTokenResource(TokenResource):
    """A new token with its secret, which is returned only once."""

    token: str = Field(examples=["ty_0123456789abcdef_secret"])
    """The secret; only its hash is stored."""


class SecretRequest(Strict):
    """The body of `PUT /v1/secrets/{secret_name}`."""

    value: Annotated[SecretValue, Field(repr=False)] = Field(examples=["..."])
    """The value of the environment variable."""


class SecretResource(Resource):
    """A secret without its value, which no route returns."""

    object: Literal["secret"] = "secret"
    name: str = Field(examples=["HF_TOKEN"])
    """Name of the secret, and of the environment variable that has its value."""
    created_at: Timestamp
    updated_at: Timestamp = Field(examples=[EXAMPLE_LATER])


class AuditResource(Resource):
    """One requested change and its outcome."""

    object: Literal["audit_entry"] = "audit_entry"
    id: str = Field(examples=["aud_12"])
    created_at: Timestamp
    actor: str = Field(examples=["anna"])
    """The user, `service` for changes by the service itself, or `anonymous`."""
    token_id: str | None = Field(default=None, examples=[EXAMPLE_ATTEMPT])
    role: str | None = Field(default=None, examples=["user"])
    action: str = Field(examples=["cancel_job"])
    """The operation's id in the OpenAPI document, such as `cancel_job`."""
    target: str | None = Field(default=None, examples=[EXAMPLE_JOB])
    """The changed resource, such as a job's id."""
    address: str | None = Field(default=None, examples=["192.0.2.7"])
    request_id: str | None = Field(default=None, examples=["req_01kdvdna00az9cxjnszk8v8abh"])
    outcome: Literal["done", "refused", "failed"]
    status: int | None = None
    """HTTP status of the response, if it was not successful."""
    detail: dict[str, Any] = Field(default_factory=dict)


WebhookFormat = Literal["trainyard", "slack"]
"""`trainyard`: the event with its job. `slack`: `{"text": ...}`, as Slack, Mattermost and gateways to mail take it."""


class WebhookRequest(Strict):
    """The body of `POST /v1/webhooks`."""

    model_config = example(statuses=["succeeded", "failed"])

    url: Annotated[str, StringConstraints(min_length=8, max_length=2000)] = Field(examples=["https://example.org/hook"])
    """`https://...`; other addresses only if an administrator has allowed the host."""
    statuses: Annotated[tuple[JobStatus, ...], Field(max_length=11)] = ()
    """Notify only of these statuses. Empty: all."""
    jobs: Literal["own", "all"] = "own"
    """Notify of the creator's jobs, or of all jobs."""
    format: WebhookFormat = "trainyard"
    """The form of the messages: the event with its job, or a text for people, with a link."""


class WebhookResource(Resource):
    """A webhook without its secret."""

    object: Literal["webhook"] = "webhook"
    id: str = Field(examples=["whk_01kdvdna00az9cxjnszk8v8abh"])
    url: str = Field(examples=["https://example.org/hook"])
    statuses: list[JobStatus] = Field(examples=[["succeeded", "failed"]])
    jobs: Literal["own", "all"]
    format: WebhookFormat = "trainyard"
    created_by: str
    created_at: Timestamp
    disabled_at: Timestamp | None = None
    """When it was disabled after repeated failures; a successful test enables it again."""
    failures: int = Field(default=0, examples=[0])
    """Number of consecutive failed deliveries."""


class NewWebhookResource(WebhookResource):
    """A new webhook with its secret, which is returned only once."""

    secret: str = Field(examples=["whsec_c2VjcmV0"])
    """The key that signs messages."""


class DeliveryResource(Resource):
    """One message to a webhook."""

    object: Literal["delivery"] = "delivery"
    id: str = Field(examples=["dlv_01kdvdna00az9cxjnszk8v8abh"])
    """Equal for all attempts of a delivery, as in the header `webhook-id`, to detect duplicates."""
    webhook_id: str = Field(examples=["whk_01kdvdna00az9cxjnszk8v8abh"])
    type: str = Field(examples=["job.status"])
    """`job.status`, `job.alert`, `cluster.node_excluded` or `test`."""
    job_id: str | None = Field(default=None, examples=[EXAMPLE_JOB])
    created_at: Timestamp
    state: Literal["waiting", "delivered", "given_up"] = Field(examples=["delivered"])
    attempts: int
    next_at: Timestamp | None = None
    delivered_at: Timestamp | None = Field(default=None, examples=[EXAMPLE_TIME])
    answer_status: int | None = Field(default=None, examples=[204])
    error: str | None = None
