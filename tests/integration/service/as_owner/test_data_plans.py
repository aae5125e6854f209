"""Data is read for a plan as the account of its user."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from service.as_owner.calls import OwnerCalls
from service.core.settings import Settings
from service.plugins.planner import data_plans
from service.plugins.planner.data_plans import DataPlanner
from service.run_files.files import OwnerRunFiles
from tests.support.owners import UnixUser
from tests.support.shared_parts import SettingsWithoutEnvironment
from trainyard.contract.spec.training_spec import parse_spec
from trainyard.contract.wire.data_accounts import DataAccounts

ROOT = Path(__file__).parents[4]


@pytest.mark.cpu_seconds(40)
def test_only_the_owner_of_a_file_gets_its_account(
    calls: OwnerCalls, people: list[UnixUser], python: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, other = people[:2]
    path = owner.home / "data.jsonl"
    path.write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    path.chmod(0o600)
    os.chown(path, owner.uid, owner.gid)
    owner.home.chmod(0o755)
    monkeypatch.setattr(Settings, "python", str(python))
    monkeypatch.setattr(data_plans, "source_tree", lambda: [ROOT])
    settings = SettingsWithoutEnvironment(state_dir=runs, run_as="owner", allowed_roots=(str(owner.home),))
    planner = DataPlanner(settings, OwnerRunFiles(runs, calls))
    model = {"source": "builtin", "name": "gpt", "layers": 1, "width": 16, "heads": 1, "context": 32}
    data = {"source": "jsonl", "path": str(path)}
    spec = parse_spec({"task": "causal_lm", "model": model, "data": data, "steps": 1})

    def accounts(user: UnixUser) -> DataAccounts:
        return asyncio.run(planner.accounts(user.name, user.uid, spec, 10, 5.0))

    own = accounts(owner)
    assert (own.problem, [account.examples for account in own.data]) == (None, [1])
    refused = accounts(other)
    assert (refused.data, "Permission denied" in str(refused.problem)) == ([], True)
