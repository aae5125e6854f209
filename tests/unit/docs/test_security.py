"""docs/security.md lists every variable that users may set, existing settings, and what protects the nodes."""

import re
from pathlib import Path

from service.core.settings import Settings
from trainyard.contract.spec.environment import HARMLESS_VARIABLES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text()


def test_security_page_lists_exactly_the_allowed_variables() -> None:
    section = PAGE.partition("## Environment variables")[2].partition("* what the administrator adds")[0]
    listed = re.findall(r"`([A-Z][A-Z0-9_]+)`", section)
    assert sorted(listed) == sorted([*(name for name in HARMLESS_VARIABLES if name != "APP_*"), "APP_"])


def test_security_page_names_existing_settings() -> None:
    names = {name.upper() for name in Settings.model_fields}
    named = {"CODE_ROLES", "ALLOWED_ROOTS", "RUNS_GROUP_READABLE", "ALLOWED_VARIABLES", "SECRETS_KEY_FILE"}
    assert named <= names
    assert all(f"`{name}" in PAGE for name in named)


def test_security_page_states_what_the_network_of_the_nodes_must_protect() -> None:
    section = PAGE.partition("\n## The node\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1].strip() for row in section.splitlines() if row.startswith("| ")][1:]
    kinds = (
        "run directory",
        "`/proc`",
        "`/tmp`, `/dev/shm`",
        "torchrun",
        "one node",
        "several nodes",
        "`script`",
        "trackers",
    )
    assert all(any(kind in row for row in rows) for kind in kinds), rows
    assert "SLURM_NETWORK_INTERFACE".lower() in Settings.model_fields
    for needed in ("Close all ports", "`net.ipv4.ip_local_port_range`", "`SLURM_NETWORK_INTERFACE`", "`hidepid=2`"):
        assert needed in section
