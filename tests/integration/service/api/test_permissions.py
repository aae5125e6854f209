"""Every route with every kind of client: the status follows from the rules in `tests/support/permissions.py`.

The routes are those of the application, so a new one is included, and fails until it has a rule.
"""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.auth.sessions import csrf_of
from service.auth.sign_in_codes import create_code
from service.scheduler.base import Observation
from tests.support.operations import Operation, all_operations, request_for, status_of
from tests.support.permissions import RULES, Identity, Role, expected_status
from tests.support.seeds import Seeds, seed
from tests.support.world import World

UNSUCCESSFUL = {"enter_job", "pause_job", "resume_job", "retry_job", "resolve_job", "get_static_file"}
UNSUCCESSFUL |= {f"refuse_mlflow_{verb}" for verb in ("get", "post", "put", "patch", "delete")}
UNSUCCESSFUL |= {f"refuse_openai_{verb}" for verb in ("get", "post", "put", "patch", "delete")}
UNSUCCESSFUL |= {"create_sign_in_nonce", "sign_in_with_munge", "revoke_own_token"}
"""Operations whose permitted requests fail here for other reasons: the state of the job, an unknown file, or munge,
which is switched off."""

HERE = "http://localhost"


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    folder = tmp_path_factory.mktemp("permissions")
    shutil.copy(migrated_sqlite, folder / "test.sqlite")
    world = World(f"sqlite:///{folder / 'test.sqlite'}", folder / "state", rate_burst=10**6, worker_rate_burst=10**6)
    seeds = seed(world)
    with world.database.write() as session:
        for table in ("jobs", "sweeps", "webhooks", "start_estimates", "data_files", "uploads", "registered_models"):
            session.execute(sa.text(f"UPDATE {table} SET created_by = 'olga'"))
        session.execute(sa.text("UPDATE secrets SET owner = 'olga'"))
    yield world, seeds
    world.database.dispose()


def new_token(world: World, name: str, role: str, **extra: Any) -> str:
    made = world.client.post("/v1/tokens", json={"name": name, "role": role, **extra})
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


def sign_in(world: World, token: str) -> str:
    """Return the secret of a new session."""
    browser = world.new_client(None)
    browser.post("/sign-in", data={"token": token}, headers={"Origin": HERE}, follow_redirects=False)
    return str(browser.cookies["trainyard"])


def bearer(name: str, role: Role, token: str) -> Identity:
    return Identity(name, role, {"Authorization": f"Bearer {token}", "Origin": HERE})


def cookie(name: str, role: Role, secret: str, *, csrf: str | None = None, origin: str | None = HERE) -> Identity:
    """A browser with a session.

    Args:
        csrf: The CSRF token that it sends; None: the session's.
        origin: None: it sends no `Origin`.
    """
    sent = csrf_of(secret) if csrf is None else csrf
    headers = {"Cookie": f"trainyard={secret}"}
    headers |= {"X-CSRF-Token": sent} if sent else {}
    headers |= {"Origin": origin} if origin else {}
    return Identity(
        name,
        role,
        headers,
        cookie=True,
        same_origin=origin == HERE,
        valid_csrf=sent == csrf_of(secret),
        csrf_token=sent,
    )


def ended_attempt(world: World) -> str:
    """Return the token of an attempt that has ended."""
    job = world.submit(name="ended")
    world.tick()
    worker = world.worker(job)
    worker.claim()
    assert worker.finish("completed").status_code == 200
    (tag,) = [tag for tag in world.scheduler.states if tag.endswith(worker.attempt_id)]
    world.scheduler.states[tag] = Observation("ended")
    world.tick()
    assert world.status(job) == "succeeded"
    return world.folder(job).token.read_text().strip()


def make_identities(world: World, seeds: Seeds) -> list[Identity]:
    """Create tokens and sessions, and return every kind of client."""
    expired, expired_attempt = new_token(world, "egon", "admin", expires_in_days=1), ended_attempt(world)
    world.clock.advance(86_400)
    owner, other, viewer = (new_token(world, *who) for who in (("olga", "user"), ("otto", "user"), ("vera", "viewer")))
    another = world.submit(name="another")
    ended = ended_attempt(world)
    other_attempt = world.folder(another).token.read_text().strip()
    revoked = new_token(world, "rita", "admin")
    stale_cookie = sign_in(world, revoked)
    world.client.delete(f"/v1/tokens/{revoked.split('_')[1]}")
    session, second, weak = sign_in(world, world.token), sign_in(world, world.token), sign_in(world, viewer)
    return [
        Identity("nobody", "none", {"Origin": HERE}),
        Identity("malformed token", "none", {"Authorization": "Bearer nonsense", "Origin": HERE}),
        Identity("Basic", "none", {"Authorization": "Basic YWRtaW46YWRtaW4=", "Origin": HERE}),
        Identity("token as Basic", "none", {"Authorization": f"Basic {world.token}", "Origin": HERE}),
        bearer("unknown token", "none", f"ty_{0:012x}_{'x' * 43}"),
        bearer("admin's id with a wrong secret", "none", world.token[:16] + "x" * 43),
        bearer("unknown attempt token", "none", f"tyw_{seeds.values['aid'][0]}_{'x' * 43}"),
        bearer("revoked admin token", "none", revoked),
        bearer("expired admin token", "none", expired),
        bearer("worker of an attempt that ended a day ago", "none", expired_attempt),
        cookie("unknown cookie", "none", "x" * 43),
        cookie("cookie of a revoked token", "none", stale_cookie),
        cookie("admin's cookie from another site", "admin", session, origin="http://evil.example"),
        cookie("admin's cookie without Origin", "admin", session, origin=None),
        cookie("admin's cookie without CSRF token", "admin", session, csrf=""),
        cookie("admin's cookie with another session's CSRF token", "admin", session, csrf=csrf_of(second)),
        bearer("worker of another attempt", "other_worker", other_attempt),
        bearer("worker of an ended attempt", "other_worker", ended),
        bearer("viewer", "viewer", viewer),
        cookie("viewer's cookie", "viewer", weak),
        bearer("another user", "other", other),
        bearer("worker", "worker", seeds.worker_token),
        bearer("owner", "owner", owner),
        bearer("admin", "admin", world.token),
        cookie("admin's cookie", "admin", session),
    ]


def permitted(operation: Operation, identity: Identity) -> bool:
    return expected_status(RULES[operation.id], identity, safe=operation.safe) is None


def judge(operation: Operation, identity: Identity, status: int) -> str | None:
    """Return what is wrong with a status; None if nothing is."""
    expected = expected_status(RULES[operation.id], identity, safe=operation.safe)
    if status == expected or (expected is None and status not in (401, 403, 405) and status < 500):
        return None
    expectation = "permitted" if expected is None else str(expected)
    return f"{operation.method} {operation.path} ({operation.id}), {identity.name}: {status}, expected {expectation}"


def test_every_operation_has_a_rule(seeded: tuple[World, Seeds]) -> None:
    ids = {operation.id for operation in all_operations(seeded[0])}
    missing, stale = ids - set(RULES), set(RULES) - ids
    assert not missing, f"add who may call {sorted(missing)} to RULES in tests/support/permissions.py"
    assert not stale, f"remove {sorted(stale)} from RULES in tests/support/permissions.py: no such operation exists"


@pytest.mark.cpu_seconds(20)
def test_every_identity_gets_the_status_of_the_rule(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    identities = make_identities(world, seeds)

    async def check_all() -> dict[tuple[str, str], int]:
        statuses = {}
        for operation in all_operations(world):
            # Those who are refused come first: they must be refused what exists.
            for number, identity in enumerate(sorted(identities, key=lambda identity: permitted(operation, identity))):
                form = {"csrf": identity.csrf_token, "token": world.token}
                if operation.id.endswith("sign_in_code") or operation.id == "sign_in_with_code":
                    form["code"] = create_code(world.database, world.token.split("_")[1], world.clock())[0]
                request = request_for(operation, seeds, number, form)
                statuses[operation.id, identity.name] = await status_of(world.app, request, identity.headers)
                if (problem := judge(operation, identity, statuses[operation.id, identity.name])) is not None:
                    problems.append(problem)
        return statuses

    problems: list[str] = []
    statuses = asyncio.run(check_all())
    assert not problems, "\n".join(problems)
    succeeded = {operation for (operation, _), status in statuses.items() if status < 400}
    assert {operation.id for operation in all_operations(world)} - succeeded == UNSUCCESSFUL
    assert len(statuses) == len(all_operations(world)) * len(identities) > 1900
