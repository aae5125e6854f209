"""Default address and state folder of the service, shared with clients on the same machine."""

import os
from ipaddress import ip_address
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8470


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/trainyard`, or `~/.local/state/trainyard`. A relative XDG path is ignored, as specified."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".local" / "state"
    return base / "trainyard"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def service_url_file(state_dir: Path) -> Path:
    """Return the file in which a running service writes its URL."""
    return state_dir / "url"


def admin_token_file(state_dir: Path) -> Path:
    """Return the file in which the first start of a service writes the admin token, with mode 0600."""
    return state_dir / "admin_token"
