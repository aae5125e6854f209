"""Sign-in by munge: what a credential and an account need, and what is refused."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import sqlalchemy as sa

from service.api.rate_limits import Rate, RateLimiter
from service.auth import sign_in as sign_in_module
from service.auth.munge import CredentialError
from service.auth.sign_in import MAX_TOKENS, MungeSignIn
from service.core.errors import UnavailableError
from service.core.settings import Settings
from tests.support.munge import FakeAccounts, FakeMunge
from tests.support.world import SPEC, World
from trainyard.contract.wire.sign_in import sign_in_message

pytestmark = pytest.mark.databases("sqlite")

ADA, BOB, EVE = 4711, 4712, 4713


class Yard:
    """A service with sign-in by munge, and clients who sign in."""

    def __init__(self, world: World, **settings: Any) -> None:
        self.world = world
        self.munge = FakeMunge()
        self.accounts = FakeAccounts({"ada": ADA, "bob": BOB, "eve": EVE})
        self.client = world.new_client(None)
        world.app_state.sign_in_rate_limiter = RateLimiter(Rate(per_second=1000, burst=1000))
        world.app_state.accounts = self.accounts
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        changed = self.world.settings.model_copy(update={"munge_role": "user", **settings})
        self.world.app_state.munge_sign_in = MungeSignIn(self.world.database, changed, self.munge, self.accounts)

    @property
    def url(self) -> str:
        return self.world.settings.service_url

    def nonce(self) -> str:
        answer = self.client.post("/v1/sign-in/nonces")
        assert answer.status_code == 201, answer.text
        return str(answer.json()["nonce"])

    def credential(self, uid: int, nonce: str, *, url: str | None = None, host: str | None = None) -> str:
        return self.munge.make(uid, sign_in_message(url or self.url, host or socket.gethostname(), nonce))

    def send(self, nonce: str, credential: str) -> httpx.Response:
        return self.client.post("/v1/sign-in/munge", json={"nonce": nonce, "credential": credential})

    def sign_in(self, uid: int) -> httpx.Response:
        nonce = self.nonce()
        return self.send(nonce, self.credential(uid, nonce))

    def audit(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.world.client.get("/v1/audit").json()["data"]
        return entries

    def tokens(self, name: str) -> list[dict[str, Any]]:
        """Return the user's valid tokens, newest first."""
        listed = self.world.client.get("/v1/tokens?limit=200").json()["data"]
        return [one for one in listed if one["name"] == name and one["revoked_at"] is None]


@pytest.fixture
def yard(world: World) -> Yard:
    return Yard(world)


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@contextmanager
def from_address(address: str) -> Iterator[None]:
    with patch("service.api.routes.sign_in.address_key", lambda: address):
        yield


class TestSignIn:
    @pytest.mark.databases("sqlite", "postgres")
    def test_account_gets_a_token_of_its_user(self, yard: Yard) -> None:
        answer = yard.sign_in(ADA)
        assert answer.status_code == 201, answer.text
        made = answer.json()
        assert (made["name"], made["role"], made["unix_uid"], made["may_run_code"]) == ("ada", "user", ADA, False)
        client = yard.world.new_client(made["token"])
        assert client.get("/v1/tokens/self").json()["name"] == "ada"
        assert client.post("/v1/jobs", json=SPEC).json()["created_by"] == "ada"
        assert "no-store" in answer.headers["cache-control"]

    def test_token_expires_after_the_set_days(self, yard: Yard) -> None:
        yard.configure(munge_token_days=2)
        client = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        yard.world.clock.advance(2 * 86_400 - 1)
        assert client.get("/v1/jobs").status_code == 200
        yard.world.clock.advance(1)
        assert client.get("/v1/jobs").status_code == 401

    def test_second_sign_in_keeps_the_first_token(self, yard: Yard) -> None:
        first, second = yard.sign_in(ADA).json()["token"], yard.sign_in(ADA).json()["token"]
        assert first != second
        for token in (first, second):
            assert yard.world.new_client(token).get("/v1/jobs").status_code == 200

    def test_oldest_of_too_many_tokens_is_revoked(self, yard: Yard) -> None:
        first = yard.sign_in(ADA).json()
        for _ in range(MAX_TOKENS):
            yard.world.clock.advance(1)
            yard.sign_in(ADA)
        assert len(yard.tokens("ada")) == MAX_TOKENS
        assert first["id"] not in [one["id"] for one in yard.tokens("ada")]

    def test_sign_in_has_an_audit_entry(self, yard: Yard) -> None:
        made = yard.sign_in(ADA).json()
        entry = yard.audit()[0]
        assert (entry["actor"], entry["action"], entry["outcome"]) == ("ada", "sign_in_with_munge", "done")
        assert (entry["target"], entry["token_id"], entry["detail"]) == (made["id"], made["id"], {"unix_uid": ADA})

    def test_credentials_of_the_request_are_ignored(self, yard: Yard) -> None:
        for headers in ({"Authorization": f"Bearer {yard.world.token}"}, {"Authorization": "Bearer wrong"}):
            assert yard.client.post("/v1/sign-in/nonces", headers=headers).status_code == 201

    def test_sign_in_is_off_by_default(self, world: World) -> None:
        client = world.new_client(None)
        assert refusal(client.post("/v1/sign-in/nonces")) == (404, "sign_in_disabled")
        body = {"nonce": "n" * 43, "credential": "MUNGE:AAAA:"}
        assert refusal(client.post("/v1/sign-in/munge", json=body)) == (404, "sign_in_disabled")


class TestCredentials:
    @pytest.mark.databases("sqlite", "postgres")
    def test_nonce_works_once(self, yard: Yard) -> None:
        nonce = yard.nonce()
        assert yard.send(nonce, yard.credential(ADA, nonce)).status_code == 201
        again = yard.credential(ADA, nonce)
        assert refusal(yard.send(nonce, again)) == (401, "unknown_nonce")
        assert again not in yard.munge.decoded

    def test_credential_works_once(self, yard: Yard) -> None:
        nonce = yard.nonce()
        credential = yard.credential(ADA, nonce)
        assert yard.send(nonce, credential).status_code == 201
        assert refusal(yard.send(yard.nonce(), credential)) == (401, "replayed_credential")

    def test_credential_with_another_nonce_is_refused(self, yard: Yard) -> None:
        first, second = yard.nonce(), yard.nonce()
        assert refusal(yard.send(second, yard.credential(ADA, first))) == (401, "wrong_service")

    def test_nonce_expires(self, yard: Yard) -> None:
        nonce = yard.nonce()
        yard.world.clock.advance(60)
        assert refusal(yard.send(nonce, yard.credential(ADA, nonce))) == (401, "unknown_nonce")

    def test_nonce_of_another_address_is_refused(self, yard: Yard) -> None:
        with from_address("192.0.2.1"):
            nonce = yard.nonce()
        credential = yard.credential(ADA, nonce)
        with from_address("192.0.2.2"):
            assert refusal(yard.send(nonce, credential)) == (401, "unknown_nonce")
        with from_address("192.0.2.1"):
            assert yard.send(nonce, credential).status_code == 201

    @pytest.mark.parametrize("url", ["https://evil.example", "http://127.0.0.1:9999", "https://127.0.0.1:8470"])
    def test_credential_for_another_service_is_refused(self, yard: Yard, url: str) -> None:
        nonce = yard.nonce()
        assert refusal(yard.send(nonce, yard.credential(ADA, nonce, url=url))) == (401, "wrong_service")

    def test_loopback_of_another_machine_is_another_service(self, yard: Yard) -> None:
        nonce = yard.nonce()
        assert refusal(yard.send(nonce, yard.credential(ADA, nonce, host="elsewhere"))) == (401, "wrong_service")

    def test_names_of_loopback_are_one_service(self, yard: Yard) -> None:
        nonce = yard.nonce()
        url = yard.url.replace("127.0.0.1", "localhost")
        assert yard.send(nonce, yard.credential(ADA, nonce, url=url + "/")).status_code == 201

    def test_public_url_is_accepted(self, yard: Yard) -> None:
        yard.configure(public_url="https://Yard.example/")
        nonce = yard.nonce()
        credential = yard.credential(ADA, nonce, url="https://yard.example:443", host="anywhere")
        assert yard.send(nonce, credential).status_code == 201

    @pytest.mark.parametrize("url", ["https://portal.example/trainyard", "http://login1.example:8470"])
    def test_public_url_with_a_path_and_url_for_workers_are_accepted(self, yard: Yard, url: str) -> None:
        yard.configure(public_url="https://portal.example/trainyard", worker_url="http://login1.example:8470")
        nonce = yard.nonce()
        assert yard.send(nonce, yard.credential(ADA, nonce, url=url, host="anywhere")).status_code == 201

    def test_message_of_another_program_is_refused(self, yard: Yard) -> None:
        nonce = yard.nonce()
        for message in (b"", nonce.encode(), sign_in_message(yard.url, socket.gethostname(), nonce) + b"x"):
            assert refusal(yard.send(nonce, yard.munge.make(ADA, message))) == (401, "wrong_service")

    def test_errors_of_munge_reach_the_client(self, yard: Yard) -> None:
        nonce = yard.nonce()
        credential = yard.credential(ADA, nonce)
        yard.munge.error = CredentialError("expired", code="expired_credential")
        assert refusal(yard.send(nonce, credential)) == (401, "expired_credential")
        yard.munge.error = UnavailableError("munge does not work", code="munge")
        assert refusal(yard.send(nonce, credential)) == (503, "munge")
        yard.munge.error = None
        assert yard.send(nonce, credential).status_code == 201

    @pytest.mark.parametrize("credential", ["", "MUNGE:", "MUNGE:a b:", "MUNGE:" + "a" * 5000 + ":", "-h", "MUNGE:é:"])
    def test_malformed_credential_starts_no_program(self, yard: Yard, credential: str) -> None:
        assert refusal(yard.send(yard.nonce(), credential)) == (422, "invalid_value")

    def test_failures_are_counted_in_the_audit(self, yard: Yard) -> None:
        yard.send("n" * 43, yard.credential(ADA, "n" * 43))
        yard.world.clock.advance(61)
        yard.world.app_state.audit_log.flush()
        assert ("anonymous", "authenticate") in [(entry["actor"], entry["action"]) for entry in yard.audit()]

    @pytest.mark.databases("sqlite", "postgres")
    def test_two_replicas_use_a_nonce_once(self, yard: Yard) -> None:
        nonce = yard.nonce()
        credentials = [yard.credential(ADA, nonce) for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            statuses = sorted(pool.map(lambda one: yard.send(nonce, one).status_code, credentials))
        assert statuses == [201, 401, 401, 401]

    def test_open_nonces_are_bounded(self, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sign_in_module, "MAX_NONCES", 2)
        for _ in range(2):
            yard.nonce()
        assert yard.client.post("/v1/sign-in/nonces").status_code == 429
        yard.world.clock.advance(60)
        yard.nonce()
        with yard.world.database.read() as session:
            assert session.scalar(sa.text("SELECT count(*) FROM sign_in_nonces")) == 1

    def test_rate_of_an_address_is_limited(self, yard: Yard) -> None:
        yard.world.app_state.sign_in_rate_limiter = RateLimiter(Rate(per_second=1, burst=2))
        token = {"Authorization": f"Bearer {yard.world.token}"}
        statuses = [yard.client.post("/v1/sign-in/nonces", headers=token).status_code for _ in range(3)]
        assert statuses == [201, 201, 429]
        assert yard.world.client.get("/v1/jobs").status_code == 200


class TestAccounts:
    @pytest.mark.parametrize("uid", [0, 999, 65534])
    def test_root_and_system_accounts_are_refused(self, yard: Yard, uid: int) -> None:
        yard.accounts.uids["someone"] = uid
        assert refusal(yard.sign_in(uid)) == (403, "account_refused")

    def test_root_is_refused_with_any_setting(self, yard: Yard) -> None:
        yard.configure(munge_min_uid=1)
        yard.accounts.uids["toor"] = 0
        assert refusal(yard.sign_in(0)) == (403, "account_refused")

    def test_service_account_is_refused(self, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: ADA)
        assert refusal(yard.sign_in(ADA)) == (403, "account_refused")

    def test_unknown_uid_is_refused(self, yard: Yard) -> None:
        assert refusal(yard.sign_in(5000)) == (403, "account_refused")
        entry = yard.audit()[0]
        assert (entry["actor"], entry["outcome"], entry["status"]) == ("uid 5000", "refused", 403)

    @pytest.mark.parametrize("name", ["admin", "Service", "anonymous", "CORP\\ada", "_apt", "a" * 65, "a b"])
    def test_name_that_no_user_can_have_is_refused(self, yard: Yard, name: str) -> None:
        yard.accounts.uids[name] = 5000
        assert refusal(yard.sign_in(5000)) == (403, "account_refused")

    def test_group_is_required(self, yard: Yard) -> None:
        yard.configure(munge_group="ml")
        yard.accounts.groups["ml"] = {"ada"}
        assert yard.sign_in(ADA).status_code == 201
        assert refusal(yard.sign_in(BOB)) == (403, "group_required")
        entry = yard.audit()[0]
        assert (entry["actor"], entry["action"], entry["outcome"]) == ("bob", "sign_in_with_munge", "refused")

    def test_missing_group_uses_up_no_credential(self, yard: Yard) -> None:
        yard.configure(munge_group="ml")
        nonce = yard.nonce()
        credential = yard.credential(ADA, nonce)
        assert refusal(yard.send(nonce, credential)) == (503, "unknown_group")
        yard.accounts.groups["ml"] = {"ada"}
        assert yard.send(nonce, credential).status_code == 201

    def test_roles_follow_the_groups(self, yard: Yard) -> None:
        yard.configure(munge_role="viewer", munge_group="ml", munge_admin_group="ops")
        yard.accounts.groups = {"ml": {"ada"}, "ops": {"bob"}}
        assert yard.sign_in(ADA).json()["role"] == "viewer"
        assert yard.sign_in(BOB).json()["role"] == "admin"
        assert refusal(yard.sign_in(EVE)) == (403, "group_required")

    def test_sign_in_with_another_role_revokes_older_tokens(self, yard: Yard) -> None:
        yard.configure(munge_admin_group="ops")
        yard.accounts.groups["ops"] = {"bob"}
        before = yard.world.new_client(yard.sign_in(BOB).json()["token"])
        assert before.get("/v1/tokens").status_code == 200
        yard.accounts.groups["ops"] = set()
        assert yard.sign_in(BOB).json()["role"] == "user"
        assert before.get("/v1/tokens").status_code == 401


class TestNames:
    @pytest.mark.parametrize("name", ["ada", "Ada"])
    def test_name_of_an_existing_user_is_not_taken_over(self, yard: Yard, name: str) -> None:
        yard.world.new_user("user", name)
        assert refusal(yard.sign_in(ADA)) == (409, "name_in_use")
        assert refusal(yard.sign_in(ADA)) == (409, "name_in_use")
        assert len(yard.tokens(name)) == 1

    @pytest.mark.databases("sqlite", "postgres")
    def test_linked_user_keeps_jobs_and_tokens(self, yard: Yard) -> None:
        before = yard.world.new_user("user", "ada")
        job = before.post("/v1/jobs", json=SPEC).json()["id"]
        linked = yard.world.client.put("/v1/unix-users/ada")
        assert (linked.status_code, linked.json()["uid"]) == (200, ADA)
        after = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        assert after.post(f"/v1/jobs/{job}/cancel").status_code == 202
        assert before.get("/v1/jobs").status_code == 200

    @pytest.mark.databases("sqlite", "postgres")
    def test_changed_uid_needs_a_new_link(self, yard: Yard) -> None:
        before = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        yard.accounts.uids["ada"] = 5000
        assert refusal(yard.sign_in(5000)) == (409, "account_changed")
        assert yard.world.client.put("/v1/unix-users/ada").json()["uid"] == 5000
        assert before.get("/v1/jobs").status_code == 401
        assert yard.sign_in(5000).status_code == 201

    @pytest.mark.databases("sqlite", "postgres")
    def test_renamed_account_needs_a_new_link(self, yard: Yard) -> None:
        before = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        del yard.accounts.uids["ada"]
        yard.accounts.uids["lovelace"] = ADA
        assert refusal(yard.sign_in(ADA)) == (409, "account_changed")
        assert yard.world.client.put("/v1/unix-users/lovelace").status_code == 200
        assert before.get("/v1/jobs").status_code == 401
        assert yard.sign_in(ADA).json()["name"] == "lovelace"

    def test_link_is_for_existing_accounts_and_administrators(self, yard: Yard) -> None:
        admin = yard.world.client
        assert refusal(admin.put("/v1/unix-users/nobody-here")) == (404, "unix_user_not_found")
        assert refusal(admin.put("/v1/unix-users/admin")) == (422, "reserved_name")
        user = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        assert refusal(user.put("/v1/unix-users/bob")) == (403, "admin_required")


class TestSignOut:
    def test_own_token_can_be_revoked(self, yard: Yard) -> None:
        client = yard.world.new_client(yard.sign_in(ADA).json()["token"])
        assert client.delete("/v1/tokens/self").status_code == 204
        assert client.get("/v1/jobs").status_code == 401

    def test_token_of_an_administrator_remains(self, yard: Yard) -> None:
        assert refusal(yard.world.new_user("user", "carl").delete("/v1/tokens/self")) == (409, "not_signed_in")


def test_groups_without_a_role_are_a_wrong_setting() -> None:
    with pytest.raises(ValueError, match="no effect without TRAINYARD_MUNGE_ROLE"):
        Settings(munge_group="ml")
    assert Settings(munge_role="user", munge_group="ml").munge_group == "ml"
