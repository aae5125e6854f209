"""Who may do what: the rule of each operation, the identities of clients, and the status that follows from both.

A new route fails `test_permissions.py` until its operation has a rule here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

Role = Literal["none", "viewer", "other", "owner", "admin", "worker", "other_worker"]
"""`owner` owns the resources of the requests, `other` is another user, `worker` has the token of the path's attempt."""


class Rule(Enum):
    """The roles that may do an operation. The value of `Rule.status` for all others is 403, or 404 if they may not
    know that the resource exists."""

    PUBLIC = "everybody"
    READ = "every user, viewers included"
    SUBMIT = "every user but viewers"
    CHANGE = "the owner and administrators"
    TOKEN = "every user with an API token"
    OWN_READ = "the owner and administrators; for others it does not exist"
    OWN_CHANGE = "the same, and viewers are refused"
    OWNER_ONLY = "the owner alone; for others it does not exist, and viewers are refused"
    CODE = "users with the code role, and administrators"
    OWN_CODE = "the owner with the code role, and administrators"
    ADMIN = "administrators"
    WORKER = "the worker of the attempt"
    PAGE = "every user with a browser session"
    ADMIN_PAGE = "administrators with a browser session"
    SIGN_IN = "everybody, from a page of the service"
    SIGN_OUT = "every browser session, from a page of the service"


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("livez", "readyz", "prometheus", "openapi"), Rule.PUBLIC),
    **dict.fromkeys(("redirect_to_jobs", "redirect_to_job", "get_static_file", "show_sign_in"), Rule.PUBLIC),
    **dict.fromkeys(("list_jobs", "get_job", "list_events", "list_attempts", "get_script", "get_log"), Rule.READ),
    **dict.fromkeys(("get_data_accounts", "compare_media_keys", "compare_media_steps"), Rule.READ),
    **dict.fromkeys(("search_log", "find_log_position", "get_lineage", "list_media", "list_media_keys"), Rule.READ),
    **dict.fromkeys(("list_sweeps", "get_sweep", "get_metrics", "list_points", "compare_metrics"), Rule.READ),
    **dict.fromkeys(("stream_job", "stream_jobs", "list_templates", "get_template"), Rule.READ),
    **dict.fromkeys(("get_cluster", "get_maintenance"), Rule.READ),
    **dict.fromkeys(("make_plan", "get_start_estimate", "get_usage", "get_own_token"), Rule.READ),
    **dict.fromkeys(("list_artifacts", "download_artifact", "check_artifact"), Rule.READ),
    **dict.fromkeys(("list_checkpoints", "get_checkpoint", "list_checkpoint_files"), Rule.READ),
    **dict.fromkeys(("download_checkpoint_file", "check_checkpoint_file"), Rule.READ),
    **dict.fromkeys(("download_checkpoint", "check_checkpoint"), Rule.READ),
    **dict.fromkeys(("list_export_files", "download_export_file", "check_export_file"), Rule.READ),
    **dict.fromkeys(("download_export", "check_export", "list_webhooks", "list_secrets"), Rule.READ),
    "plan_data": Rule.SUBMIT,
    **dict.fromkeys(("submit_job", "submit_changes", "submit_sweep", "create_webhook", "set_secret"), Rule.SUBMIT),
    **dict.fromkeys(("delete_job", "cancel_job", "pause_job", "resume_job", "retry_job", "profile_job"), Rule.CHANGE),
    **dict.fromkeys(("delete_checkpoint", "cancel_sweep"), Rule.CHANGE),
    **dict.fromkeys(("get_webhook", "list_deliveries"), Rule.OWN_READ),
    **dict.fromkeys(("delete_webhook", "test_webhook"), Rule.OWN_CHANGE),
    **dict.fromkeys(("list_models", "get_model"), Rule.READ),
    **dict.fromkeys(("register_model_version", "set_model_alias", "delete_model_alias"), Rule.CHANGE),
    **dict.fromkeys(("delete_model_version", "delete_model"), Rule.CHANGE),
    **dict.fromkeys(("list_views", "list_job_keys"), Rule.READ),
    "create_view": Rule.SUBMIT,
    **dict.fromkeys(("replace_view", "delete_view"), Rule.OWN_CHANGE),
    "edit_job": Rule.CHANGE,
    **dict.fromkeys(("list_projects", "get_project", "get_project_usage"), Rule.READ),
    "create_project": Rule.SUBMIT,
    **dict.fromkeys(("change_project", "delete_project"), Rule.CHANGE),
    **dict.fromkeys(("set_project_member", "remove_project_member"), Rule.CHANGE),
    "delete_secret": Rule.OWNER_ONLY,
    **dict.fromkeys(("list_files", "get_file", "download_file", "check_file", "list_uploads"), Rule.READ),
    **dict.fromkeys(("upload_file", "start_upload"), Rule.SUBMIT),
    "delete_file": Rule.CHANGE,
    "get_upload": Rule.OWN_READ,
    **dict.fromkeys(("send_part", "complete_upload", "abandon_upload"), Rule.OWN_CHANGE),
    **dict.fromkeys(
        ("resolve_job", "list_orphans", "resolve_orphan", "create_token", "list_tokens", "revoke_token", "list_audit"),
        Rule.ADMIN,
    ),
    **dict.fromkeys(("create_sign_in_nonce", "sign_in_with_munge", "exchange_sign_in_code"), Rule.PUBLIC),
    "revoke_own_token": Rule.READ,
    "create_sign_in_code": Rule.TOKEN,
    **dict.fromkeys(("resolve_lost_jobs", "link_unix_user", "list_oidc_users", "set_oidc_user"), Rule.ADMIN),
    **dict.fromkeys(("start_oidc_sign_in", "start_oidc_code", "finish_oidc_sign_in"), Rule.PUBLIC),
    **dict.fromkeys(("set_maintenance", "get_doctor", "include_node"), Rule.ADMIN),
    **dict.fromkeys(("put_code", "get_code", "has_code"), Rule.CODE),
    "enter_job": Rule.OWN_CODE,
    **dict.fromkeys(("claim_attempt", "send_heartbeat", "report_metrics", "report_events"), Rule.WORKER),
    **dict.fromkeys(("report_checkpoint", "report_parameters", "append_log", "finish_attempt"), Rule.WORKER),
    "report_media": Rule.WORKER,
    **dict.fromkeys(("search_mlflow_experiments", "get_mlflow_experiment", "find_mlflow_experiment"), Rule.READ),
    **dict.fromkeys(("search_mlflow_runs", "get_mlflow_run", "get_mlflow_history"), Rule.READ),
    **dict.fromkeys(("search_mlflow_models", "list_mlflow_artifacts", "download_mlflow_artifact"), Rule.READ),
    **dict.fromkeys(("get_mlflow_health", "get_mlflow_version"), Rule.READ),
    **{f"refuse_mlflow_{verb}": Rule.READ for verb in ("get", "post", "put", "patch", "delete")},
    **dict.fromkeys(("list_fine_tunes", "get_fine_tune", "list_fine_tune_events"), Rule.READ),
    **dict.fromkeys(("list_fine_tune_checkpoints", "list_openai_models", "get_openai_model"), Rule.READ),
    **dict.fromkeys(("list_openai_files", "get_openai_file", "download_openai_file"), Rule.READ),
    **{f"refuse_openai_{verb}": Rule.READ for verb in ("get", "post", "put", "patch", "delete")},
    **dict.fromkeys(("create_fine_tune", "create_openai_file"), Rule.SUBMIT),
    **dict.fromkeys(("cancel_fine_tune", "pause_fine_tune", "resume_fine_tune"), Rule.CHANGE),
    **dict.fromkeys(("delete_openai_model", "delete_openai_file"), Rule.CHANGE),
    **dict.fromkeys(("show_jobs", "show_job", "show_cluster", "show_compare", "show_submit", "show_files"), Rule.PAGE),
    **dict.fromkeys(("show_api_docs", "show_help", "show_help_text", "show_models", "show_model"), Rule.PAGE),
    **dict.fromkeys(("show_projects", "show_project"), Rule.PAGE),
    **dict.fromkeys(("show_tokens", "show_webhooks", "show_audit"), Rule.ADMIN_PAGE),
    **dict.fromkeys(("sign_in", "check_sign_in_code", "sign_in_with_code"), Rule.SIGN_IN),
    "sign_out": Rule.SIGN_OUT,
}


@dataclass(frozen=True)
class Identity:
    """A client: the headers that it sends, and what they prove."""

    name: str
    role: Role
    headers: Mapping[str, str]
    may_run_code: bool = False
    """Whether it has the code role; administrators always have it here."""
    address: str = "127.0.0.1"
    cookie: bool = False
    same_origin: bool = True
    """Whether `Origin` names the service."""
    valid_csrf: bool = True
    """Whether the CSRF token is the session's."""
    csrf_token: str = ""
    """The token that its forms send."""


_ALLOWED: Mapping[Rule, frozenset[Role]] = {
    Rule.READ: frozenset({"viewer", "other", "owner", "admin"}),
    Rule.TOKEN: frozenset({"viewer", "other", "owner", "admin"}),
    Rule.SUBMIT: frozenset({"other", "owner", "admin"}),
    Rule.CHANGE: frozenset({"owner", "admin"}),
    Rule.OWN_READ: frozenset({"owner", "admin"}),
    Rule.OWN_CHANGE: frozenset({"owner", "admin"}),
    Rule.OWNER_ONLY: frozenset({"owner"}),
    Rule.ADMIN: frozenset({"admin"}),
    Rule.CODE: frozenset({"other", "owner", "admin"}),
    Rule.OWN_CODE: frozenset({"owner", "admin"}),
    Rule.WORKER: frozenset({"worker"}),
}
_OWNERSHIP = (Rule.CHANGE, Rule.OWN_CODE)
"""Rules by which another user is refused for who the owner is."""
_HIDDEN: Mapping[Rule, frozenset[Role]] = {
    Rule.OWN_READ: frozenset({"viewer", "other"}),
    Rule.OWN_CHANGE: frozenset({"other"}),
    Rule.OWNER_ONLY: frozenset({"other", "admin"}),
}


def refused_by_role(rule: Rule, identity: Identity, *, safe: bool) -> bool:
    """Return whether a route of the API refuses an identity, whatever it names and sends."""
    if rule in (Rule.PUBLIC, Rule.SIGN_IN, Rule.SIGN_OUT, Rule.PAGE, Rule.ADMIN_PAGE, Rule.TOKEN):
        return False
    if rule in _OWNERSHIP and identity.role == "other" and _has_code_role(rule, identity):
        return False
    return expected_status(rule, identity, safe=safe) in (401, 403)


def _has_code_role(rule: Rule, identity: Identity) -> bool:
    """Return whether the identity has the code role, or the rule does not need it."""
    return rule not in (Rule.CODE, Rule.OWN_CODE) or identity.may_run_code or identity.role == "admin"


def expected_status(rule: Rule, identity: Identity, *, safe: bool, private: bool = False) -> int | None:
    """Return the status of the refusal; None if the identity is permitted.

    Args:
        safe: Whether the method of the request changes nothing.
        private: Whether jobs run as their owners, and the request names what belongs to one.
    """
    cross_site = identity.cookie and not identity.same_origin
    if rule is Rule.PUBLIC and cross_site and not safe:
        return 403
    if rule in (Rule.PUBLIC, Rule.SIGN_IN):
        return 403 if rule is Rule.SIGN_IN and not identity.same_origin else None
    if rule in (Rule.PAGE, Rule.ADMIN_PAGE, Rule.SIGN_OUT):
        if not identity.cookie or identity.role == "none":
            return 401
        if rule is Rule.SIGN_OUT:
            return None if identity.valid_csrf and not cross_site else 403
        return None if rule is Rule.PAGE or identity.role == "admin" else 403
    if identity.role == "none":
        return 401
    if identity.cookie and not safe and (cross_site or not identity.valid_csrf):
        return 403
    if rule is Rule.TOKEN and identity.cookie:
        return 403
    allowed = identity.role in _ALLOWED[rule] and _has_code_role(rule, identity)
    owned = rule in _OWNERSHIP and identity.role == "other" and _has_code_role(rule, identity)
    if private and identity.role in ("viewer", "other") and (allowed or owned):
        return 404
    if allowed:
        return None
    return 404 if identity.role in _HIDDEN.get(rule, ()) else 403
