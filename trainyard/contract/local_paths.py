"""Where a service and the people on its machine meet: the state folder and the files they both name."""

import os
from ipaddress import ip_address
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8470


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/trainyard`, or `~/.local/state/trainyard`. A relative XDG path is ignored, as its rules ask."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".local" / "state"
    return base / "trainyard"


def is_loopback(host: str) -> bool:
    """Whether a host of this name or address can only be this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def service_url_file(state_dir: Path) -> Path:
    """A running service writes there where it listens."""
    return state_dir / "url"


def admin_token_file(state_dir: Path) -> Path:
    """The first start of a service writes its administrator's token there, mode 0600."""
    return state_dir / "admin_token"
