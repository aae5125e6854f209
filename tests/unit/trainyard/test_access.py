"""Tokens, the audit log and webhooks in the client and on the command line."""

import json

import httpx
import pytest

from tests.unit.trainyard.fake_service import TIME, FakeService, error, page
from trainyard.client import ConnectionFailedError, ForeignAnswerError, InvalidRequestError

TOKEN = {"id": "abc123abc123", "name": "ada", "role": "user", "created_at": TIME}
HOOK = {
    "id": "whk_01kdvdna00az9cxjnszk8v8abh",
    "url": "https://x.example/",
    "statuses": [],
    "jobs": "own",
    "created_by": "ada",
    "created_at": TIME,
}


def test_token_creation_is_not_retried_after_an_unknown_outcome() -> None:
    proxy_error = httpx.Response(502, text="<html>")
    for failure, kind in ((httpx.ReadError("cut"), ConnectionFailedError), (proxy_error, ForeignAnswerError)):
        service = FakeService().on("POST", "/v1/tokens", failure)
        with pytest.raises(kind):
            service.client().create_token("ada")
        assert len(service.requests) == 1


def test_token_creation_is_retried_after_a_clear_failure() -> None:
    busy = error(503, "the database does not answer", "server_error", "database")
    service = FakeService().on("POST", "/v1/tokens", busy, {**TOKEN, "token": "ty_x"})
    assert service.client().create_token("ada", expires_in_days=7).token == "ty_x"
    assert json.loads(service.requests[-1].content) == {
        "name": "ada",
        "role": "user",
        "expires_in_days": 7,
        "may_run_code": False,
    }


def test_rejected_webhook_raises_with_the_services_message() -> None:
    service = FakeService().on(
        "POST", "/v1/webhooks", error(422, "leads to ::1", "invalid_request_error", "forbidden_url")
    )
    with pytest.raises(InvalidRequestError, match="leads to ::1"):
        service.client().create_webhook("https://localhost/")


async def collected(service: FakeService) -> tuple[list[str], str]:
    client = service.async_client()
    return [token.id async for token in client.tokens()], (await client.whoami()).name


def test_async_client_behaves_the_same() -> None:
    import asyncio

    service = FakeService().on("GET", "/v1/tokens", page(TOKEN)).on("GET", "/v1/tokens/self", TOKEN)
    assert asyncio.run(collected(service)) == ([TOKEN["id"]], "ada")


def test_only_the_secret_is_on_stdout(service, run):
    service.on("POST", "/v1/tokens", {**TOKEN, "token": "ty_secret"})
    result = run("tokens", "create", "ada", "--days", "7")
    assert (result.exit_code, result.stdout) == (0, "ty_secret\n")
    assert "shown only once" in result.stderr


@pytest.mark.parametrize(("options", "days"), [((), 90), (("--days", "7"), 7), (("--no-expiry",), None)])
def test_token_expires_after_90_days_by_default(service, run, options, days):
    service.on("POST", "/v1/tokens", {**TOKEN, "token": "ty_secret"})
    assert run("tokens", "create", "ada", *options).exit_code == 0
    assert json.loads(service.requests[-1].content).get("expires_in_days") == days


def test_token_with_days_and_without_expiry_is_a_usage_error(service, run):
    assert run("tokens", "create", "ada", "--days", "7", "--no-expiry").exit_code == 2
    assert not service.requests


def test_token_of_the_client_expires_after_90_days_by_default():
    service = FakeService().on("POST", "/v1/tokens", {**TOKEN, "token": "ty_x"})
    with service.client() as client:
        client.create_token("ada")
        client.create_token("ada", expires_in_days=None)
    assert [json.loads(one.content).get("expires_in_days") for one in service.requests] == [90, None]


def test_tokens_are_listed_and_revoked(service, run):
    service.on("GET", "/v1/tokens", page({**TOKEN, "revoked_at": TIME}))
    service.on("DELETE", "/v1/tokens/abc123abc123", httpx.Response(204))
    listed = run("tokens", "list").stdout
    assert "abc123abc123" in listed
    assert "revoked" in listed
    assert run("tokens", "revoke", "abc123abc123").stdout == "token abc123abc123: revoked\n"


def test_the_audit_is_a_table(service, run):
    entry = {
        "id": "aud_1",
        "created_at": TIME,
        "actor": "bob",
        "action": "cancel_job",
        "target": "job_1",
        "address": "192.0.2.1",
        "request_id": "req_1",
        "outcome": "refused",
        "status": 403,
    }
    service.on("GET", "/v1/audit", page(entry))
    lines = run("audit", "--by", "bob").stdout.splitlines()
    assert lines[1].split() == [
        "2026-01-02",
        "03:04:05Z",
        "bob",
        "cancel_job",
        "job_1",
        "refused",
        "(403)",
        "192.0.2.1",
        "req_1",
    ]
    assert service.requests[-1].url.params["actor"] == "bob"


def test_failed_sign_ins_are_shown_with_their_address(service, run):
    counted = {"count": 3, "addresses": {"10.0.0.7": 2, "10.0.0.9": 1}}
    entry = {"id": "aud_1", "created_at": TIME, "actor": "anonymous", "action": "authenticate", "outcome": "refused"}
    service.on("GET", "/v1/audit", page({**entry, "status": 401, "detail": counted}))
    assert "refused (401), 3 requests  10.0.0.7, 10.0.0.9" in run("audit").stdout


def test_audit_is_filtered_by_time(service, run):
    service.on("GET", "/v1/audit", page())
    assert run("audit", "--since", "2026-01-31", "--until", "2026-02-01 12:00").exit_code == 0
    params = service.requests[-1].url.params
    assert (params["created_after"], params["created_before"]) == (
        "2026-01-31T00:00:00.000Z",
        "2026-02-01T12:00:00.000Z",
    )


def test_webhook_is_fetched_by_id(service):
    service.on("GET", f"/v1/webhooks/{HOOK['id']}", HOOK)
    assert service.client().webhook(HOOK["id"]).url == HOOK["url"]


def test_webhooks_from_the_command_line(service, run):
    service.on("POST", "/v1/webhooks", {**HOOK, "secret": "whsec_x"})
    service.on("GET", "/v1/webhooks", page(HOOK))
    made = run("webhooks", "create", "https://x.example/", "--status", "failed", "--all-jobs")
    assert made.stdout == "whsec_x\n"
    assert json.loads(service.requests[-1].content) == {
        "url": "https://x.example/",
        "statuses": ["failed"],
        "jobs": "all",
    }
    assert "whk_01kdvdna00az9cxjnszk8v8abh" in run("webhooks", "list").stdout


SECRET = {"name": "HF_TOKEN", "created_at": TIME, "updated_at": TIME}


def test_secret_value_is_read_from_stdin_and_never_printed(service, run):
    service.on("PUT", "/v1/secrets/HF_TOKEN", SECRET)
    result = run("secrets", "set", "HF_TOKEN", input="hush-hush\n")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "stored secret HF_TOKEN\n")
    assert json.loads(service.requests[-1].content) == {"value": "hush-hush"}
    assert run("secrets", "set", "HF_TOKEN", "hush-hush", input="x").exit_code == 2


def test_secret_value_is_prompted_for_without_echo(service, run, monkeypatch):
    service.on("PUT", "/v1/secrets/HF_TOKEN", SECRET)
    monkeypatch.setattr("trainyard.cli.secrets.getpass", lambda prompt: "typed")
    monkeypatch.setattr("trainyard.cli.secrets._is_interactive", lambda: True)
    assert run("secrets", "set", "HF_TOKEN").exit_code == 0
    assert json.loads(service.requests[-1].content) == {"value": "typed"}


def test_empty_secret_is_rejected(service, run):
    assert run("secrets", "set", "HF_TOKEN", input="\n").exit_code == 2
    assert service.requests == []


def test_secrets_are_listed_and_deleted(service, run):
    service.on("GET", "/v1/secrets", page(SECRET)).on("DELETE", "/v1/secrets/HF_TOKEN", httpx.Response(204))
    assert "HF_TOKEN" in run("secrets", "list").stdout
    assert run("secrets", "delete", "HF_TOKEN").stdout == "secret HF_TOKEN: deleted\n"


def test_an_administrator_deletes_all_secrets_of_a_user(service, run):
    service.on("GET", "/v1/secrets", page(SECRET, {**SECRET, "name": "X_TOKEN"}))
    for name in ("HF_TOKEN", "X_TOKEN"):
        service.on("DELETE", f"/v1/secrets/{name}", httpx.Response(204))
    assert "HF_TOKEN" in run("secrets", "list", "--user", "anna").stdout
    deleted = run("secrets", "delete", "--all", "--user", "anna")
    assert deleted.stdout == "anna's secret HF_TOKEN: deleted\nanna's secret X_TOKEN: deleted\n"
    assert [dict(request.url.params) for request in service.requests] == [{"user": "anna"}] * 4
    assert run("secrets", "delete").exit_code == run("secrets", "delete", "X_TOKEN", "--all").exit_code == 2


def test_a_user_without_secrets_is_named(service, run):
    service.on("GET", "/v1/secrets", page())
    deleted = run("secrets", "delete", "--all", "--user", "anna")
    assert (deleted.exit_code, deleted.stderr) == (6, "error: anna has no secrets\n")
    assert run("secrets", "list", "--user", "anna").stderr == "anna has no secrets\n"
    assert run("secrets", "list").stderr == "you have no secrets\n"


def test_deletion_of_all_own_secrets_is_confirmed(service, run):
    service.on("GET", "/v1/secrets", page(SECRET)).on("DELETE", "/v1/secrets/HF_TOKEN", httpx.Response(204))
    assert "HF_TOKEN" in run("secrets", "delete", "--all", input="n\n").stdout
    assert [request.method for request in service.requests] == ["GET"]
    assert run("secrets", "delete", "--all", "--yes").stdout == "secret HF_TOKEN: deleted\n"


def test_a_name_that_needs_the_code_role_is_noted(service, run):
    service.on("PUT", "/v1/secrets/HF_HOME", {**SECRET, "name": "HF_HOME"})
    service.on("GET", "/v1/tokens/self", TOKEN)
    noted = run("secrets", "set", "HF_HOME", input="x")
    assert noted.exit_code == 0
    assert "note: a spec of yours may not list HF_HOME" in noted.stderr
    assert "names that end in _TOKEN" in noted.stderr


def test_a_binary_value_is_refused_with_the_remedy(service, run):
    result = run("secrets", "set", "HF_TOKEN", input=b"\xff\xfe")
    assert (result.exit_code, service.requests) == (2, [])
    assert "the value is not UTF-8 text; encode it, for example with base64" in result.stderr


def test_a_missing_secret_suggests_the_list(service, run):
    service.on("DELETE", "/v1/secrets/X_TOKEN", error(404, "you have no secret", "not_found_error", "secret_not_found"))
    assert "list them with: trainyard secrets list" in run("secrets", "delete", "X_TOKEN").stderr


def test_the_audit_names_the_owner_and_counts_one_request(service, run):
    entry = {"id": "7", "created_at": TIME, "actor": "admin", "action": "delete_secret", "target": "HF_TOKEN"}
    listing = {**entry, "action": "list_secrets", "target": None, "outcome": "done", "detail": {"user": "bert"}}
    refused = {**entry, "outcome": "refused", "detail": {"user": "anna", "count": 1}}
    service.on("GET", "/v1/audit", page(refused, listing))
    shown = run("audit", "--actor", "admin").stdout
    assert "HF_TOKEN of anna" in shown
    assert "list_secrets   bert " in shown
    assert "1 request " in shown.replace("\n", " ")


PROVIDER_USER = {
    "object": "oidc_user",
    "name": "ada",
    "issuer": "https://login.example.org",
    "subject": "subject-1",
    "created_at": TIME,
    "signed_in_at": None,
    "disabled_at": None,
}


@pytest.mark.parametrize(
    ("arguments", "body", "state"),
    [
        (("link", "ada", "--subject", "subject-1"), {"subject": "subject-1", "disabled": False}, "can sign in"),
        (("disable", "ada"), {"disabled": True}, "is disabled"),
        (("enable", "ada"), {"disabled": False}, "can sign in"),
    ],
)
def test_user_of_a_provider_is_changed(service, run, arguments, body, state):
    disabled_at = TIME if body["disabled"] else None
    service.on("PUT", "/v1/oidc-users/ada", {**PROVIDER_USER, "disabled_at": disabled_at})
    done = run("tokens", *arguments)
    assert done.stdout == f"the user ada is the subject subject-1 of https://login.example.org, and {state}\n"
    assert json.loads(service.requests[-1].content) == body


def test_users_of_a_provider_are_listed(service, run):
    service.on("GET", "/v1/oidc-users", page({**PROVIDER_USER, "id": "ada"}))
    done = run("tokens", "subjects")
    assert done.stdout.splitlines()[1].split() == ["ada", "subject-1", "https://login.example.org", "never", "enabled"]
