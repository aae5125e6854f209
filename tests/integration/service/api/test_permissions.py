"""Every route with every kind of client: the status follows from the rules in `tests/support/permissions.py`.

The routes are those of the application, so a new one is included, and fails until it has a rule.
"""

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.auth.sessions import csrf_of
from service.auth.sign_in_codes import create_code
from service.db.models import UnixUser
from service.scheduler.base import Observation
from tests.support.operations import Operation, all_operations, request_for, status_of
from tests.support.permissions import RULES, Identity, Role, expected_status, refused_by_role
from tests.support.seeds import Seeds, seed
from tests.support.world import SPEC, World

UNSUCCESSFUL = {"enter_job", "pause_job", "resume_job", "retry_job", "resolve_job", "get_static_file"}
UNSUCCESSFUL |= {f"refuse_mlflow_{verb}" for verb in ("get", "post", "put", "patch", "delete")}
UNSUCCESSFUL |= {f"refuse_openai_{verb}" for verb in ("get", "post", "put", "patch", "delete")}
UNSUCCESSFUL |= {"create_sign_in_nonce", "sign_in_with_munge", "revoke_own_token"}
UNSUCCESSFUL |= {"exchange_sign_in_code", "set_oidc_user", "start_oidc_sign_in", "start_oidc_code"}
UNSUCCESSFUL |= {"finish_oidc_sign_in"}
"""Operations whose permitted requests fail here for other reasons: the state of the job, an unknown file or code, or
munge and the OpenID provider, which are absent."""

HERE = "http://localhost"
PRIVATE = ("{job_id}", "{sweep_id}", "{estimate_id}", "{model_name}", "{file_id}")
"""Parameters of paths that name what belongs to the owner of jobs."""
PRIVATE_QUERIES = {"compare_metrics", "get_mlflow_run", "get_mlflow_history", "list_mlflow_artifacts"}
PRIVATE_QUERIES |= {"delete_openai_model"}
"""Operations that name a job by other means."""


@pytest.fixture(scope="module")
def seeded(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    yield from seeded_world(migrated_sqlite, tmp_path_factory.mktemp("permissions"))


def seeded_world(migrated: Path, folder: Path) -> Iterator[tuple[World, Seeds]]:
    """Yield a service whose resources belong to `olga`."""
    shutil.copy(migrated, folder / "test.sqlite")
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


def bearer(name: str, role: Role, token: str, *, may_run_code: bool = False) -> Identity:
    return Identity(name, role, {"Authorization": f"Bearer {token}", "Origin": HERE}, may_run_code=may_run_code)


def local_account(attempt: str) -> Identity:
    """Another account of a node: it knows the attempt's id, which is in the command line of its processes."""
    headers = {"Authorization": f"Bearer tyw_{attempt}_{'x' * 43}"}
    return Identity("another account on the node", "none", headers, same_origin=False)


def host_in_network() -> Identity:
    """A host that claims to be a proxy before a client of this machine."""
    forged = {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https", "Forwarded": "for=127.0.0.1"}
    return Identity("a host in the network", "none", forged, address="10.9.8.7", same_origin=False)


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
    coder, coding_owner = (new_token(world, name, "user", may_run_code=True) for name in ("otto", "olga"))
    return [
        Identity("nobody", "none", {"Origin": HERE}),
        local_account(seeds.values["aid"][0]),
        host_in_network(),
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
        bearer("another user with the code role", "other", coder, may_run_code=True),
        bearer("worker", "worker", seeds.worker_token),
        bearer("owner", "owner", owner),
        bearer("owner with the code role", "owner", coding_owner, may_run_code=True),
        bearer("admin", "admin", world.token),
        cookie("admin's cookie", "admin", session),
    ]


def status_expected(world: World, operation: Operation, identity: Identity) -> int | None:
    """Return the status of the refusal of an operation; None if the identity is permitted."""
    names_job = any(part in operation.path for part in PRIVATE) or operation.id in PRIVATE_QUERIES
    private = world.app_state.settings.run_as == "owner" and names_job
    return expected_status(RULES[operation.id], identity, safe=operation.safe, private=private)


def judge(world: World, operation: Operation, identity: Identity, status: int) -> str | None:
    """Return what is wrong with a status; None if nothing is."""
    expected = status_expected(world, operation, identity)
    if status == expected or (expected is None and status not in (401, 403, 405) and status < 500):
        return None
    expectation = "permitted" if expected is None else str(expected)
    return f"{operation.method} {operation.path} ({operation.id}), {identity.name}: {status}, expected {expectation}"


def statuses_of(world: World, seeds: Seeds, identities: list[Identity]) -> dict[tuple[str, str], int]:
    """Send each operation as each identity; assert that the statuses are those of the rules, and return them."""

    async def send_all() -> dict[tuple[str, str], int]:
        statuses = {}
        for operation in all_operations(world):
            # Those who are refused come first: they must be refused what exists.
            in_order = sorted(identities, key=lambda identity: status_expected(world, operation, identity) is None)
            for number, identity in enumerate(in_order):
                form = {"csrf": identity.csrf_token, "token": world.token}
                if operation.id.endswith("sign_in_code") or operation.id == "sign_in_with_code":
                    form["code"] = create_code(world.database, world.token.split("_")[1], world.clock())[0]
                request = request_for(operation, seeds, number, form)
                status = await status_of(world.app, request, identity.headers, identity.address)
                statuses[operation.id, identity.name] = status
                if (problem := judge(world, operation, identity, status)) is not None:
                    problems.append(problem)
        return statuses

    problems: list[str] = []
    statuses = asyncio.run(send_all())
    assert not problems, "\n".join(problems)
    assert len(statuses) == len(all_operations(world)) * len(identities)
    return statuses


def test_every_operation_has_a_rule(seeded: tuple[World, Seeds]) -> None:
    ids = {operation.id for operation in all_operations(seeded[0])}
    missing, stale = ids - set(RULES), set(RULES) - ids
    assert not missing, f"add who may call {sorted(missing)} to RULES in tests/support/permissions.py"
    assert not stale, f"remove {sorted(stale)} from RULES in tests/support/permissions.py: no such operation exists"


INVALID = {
    "malformed body": {"body": b"{", "content_type": "application/json"},
    "body of another form": {"body": b'{"none": [1]}', "content_type": "application/json"},
    "no body": {"body": b""},
    "unknown query parameter": {"query": "none=1"},
}
"""Changes to a request that make it invalid, at least where a route reads that part of it."""


def invalid_requests(operation: Operation) -> dict[str, dict[str, Any]]:
    """Return the changes that make a request of an operation invalid; one that only reads has no body."""
    return {name: changes for name, changes in INVALID.items() if "query" in changes or not operation.safe}


@pytest.mark.cpu_seconds(10)
def test_role_is_checked_before_query_and_body(seeded: tuple[World, Seeds]) -> None:
    """What is wrong with a request is nobody's business who may not send it; and no time is spent on its body."""
    world, seeds = seeded
    identities = make_identities(world, seeds)
    tested: Counter[str] = Counter()

    async def problems() -> AsyncIterator[str]:
        for operation in all_operations(world):
            rule, safe = RULES[operation.id], operation.safe
            for identity in (each for each in identities if refused_by_role(rule, each, safe=safe)):
                expected = expected_status(rule, identity, safe=safe)
                for name, changes in invalid_requests(operation).items() if identity.role != "none" else ():
                    request = replace(request_for(operation, seeds, 0, {}), **changes)
                    status = await status_of(world.app, request, identity.headers, identity.address)
                    tested[identity.name] += 1
                    if status != expected:
                        yield f"{operation.id}, {identity.name}, {name}: {status}, expected {expected}"

    async def collect() -> list[str]:
        return [problem async for problem in problems()]

    assert asyncio.run(collect()) == []
    assert tested["viewer"] > 200
    assert tested["another user"] > 50
    assert tested["worker of another attempt"] > 200


@pytest.mark.cpu_seconds(25)
def test_every_identity_gets_the_status_of_the_rule(seeded: tuple[World, Seeds]) -> None:
    world, seeds = seeded
    statuses = statuses_of(world, seeds, make_identities(world, seeds))
    succeeded = {operation for (operation, _), status in statuses.items() if status < 400}
    assert {operation.id for operation in all_operations(world)} - succeeded == UNSUCCESSFUL


CODE_FIELDS = {
    "task": {"task": "script", "argv": ["/bin/true"]},
    "variable": {"environment": {"variables": {"ANY": "1"}}},
    "python": {"environment": {"python": "/usr/bin/python3"}},
    "setup": {"environment": {"setup": ["true"]}},
}


@pytest.mark.parametrize("field", CODE_FIELDS)
@pytest.mark.parametrize("operation", ["submit_job", "submit_sweep"])
def test_code_in_a_spec_needs_the_code_role(seeded: tuple[World, Seeds], operation: str, field: str) -> None:
    world, _ = seeded
    spec = {"task": "script", "gpus": 1, **CODE_FIELDS[field]} if field == "task" else {**SPEC, **CODE_FIELDS[field]}
    sweep = {"spec": spec, "grid": {"restart.max_retries": [0, 1]}}
    path, body = ("/v1/jobs", spec) if operation == "submit_job" else ("/v1/sweeps", sweep)
    statuses = {}
    for name, role, may_run_code in (("vera", "viewer", False), ("otto", "user", False), ("otto", "user", True)):
        client = world.new_client(new_token(world, name, role, may_run_code=may_run_code))
        answer = client.post(path, json=body)
        statuses[role, may_run_code] = (answer.status_code, (answer.json().get("error") or {}).get("code"))
    refused = (403, "code_role_required")
    assert statuses == {("viewer", False): (403, "forbidden"), ("user", False): refused, ("user", True): (201, None)}


@pytest.fixture(scope="module")
def owned(migrated_sqlite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Seeds]]:
    """Yield a service whose jobs run as their owners, `olga` and `otto`, who both have the code role."""
    for world, seeds in seeded_world(migrated_sqlite, tmp_path_factory.mktemp("owners")):
        world.settings.run_as, world.settings.code_roles = "owner", ("admin", "user")
        # Specs do not read the runs there.
        models = shutil.move(world.settings.runs / "base-model", world.settings.state.parent / "base-model")
        world.settings.allowed_roots = (str(models),)
        file = world.settings.state / "models.yaml"
        file.write_text(file.read_text().replace(str(world.settings.runs / "base-model"), str(models)))
        with world.database.write() as session:
            session.execute(sa.text("UPDATE jobs SET unix_uid = :uid"), {"uid": os.getuid()})
            for number, name in enumerate(("olga", "otto", "admin")):
                session.add(UnixUser(name=name, uid=os.getuid() + number, created_at=world.clock()))
        yield world, seeds


@pytest.mark.cpu_seconds(20)
def test_owners_get_the_statuses_of_the_rules_where_jobs_run_as_them(owned: tuple[World, Seeds]) -> None:
    world, seeds = owned
    names = {"olga": "user", "otto": "user", "vera": "viewer"}
    tokens = {name: new_token(world, name, role) for name, role in names.items()}
    identities = [
        Identity("nobody", "none", {"Origin": HERE}),
        local_account(seeds.values["aid"][0]),
        bearer("viewer", "viewer", tokens["vera"]),
        bearer("another owner", "other", tokens["otto"], may_run_code=True),
        bearer("worker", "worker", seeds.worker_token),
        bearer("owner", "owner", tokens["olga"], may_run_code=True),
        bearer("admin", "admin", world.token),
        replace(cookie("another owner's cookie", "other", sign_in(world, tokens["otto"])), may_run_code=True),
    ]
    statuses = statuses_of(world, seeds, identities)
    assert sum(status == 404 for (_, name), status in statuses.items() if name == "another owner") > 40
