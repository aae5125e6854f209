"""compose.yaml starts with one command, in any order of its services."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]


def services() -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    return services


def before(name: str, all_services: dict[str, dict[str, Any]]) -> set[str]:
    """Return the names of all services that start before a service."""
    direct = set(all_services[name].get("depends_on", ()))
    return direct.union(*(before(other, all_services) for other in direct))


def test_services_that_build_an_image_come_before_its_users() -> None:
    """docker-compose 1.29 builds or pulls each service when its turn has come, and ends at the first that it cannot."""
    all_services = services()
    builder = {service["image"]: name for name, service in all_services.items() if "build" in service}
    assert len(builder) == 3
    late = {
        name
        for name, service in all_services.items()
        if "build" not in service
        and service["image"] in builder
        and builder[service["image"]] not in before(name, all_services)
    }
    assert late == set()
