"""The tokens of `trainyard login`, in a file that only the user's account can read."""

import json
import os
import socket
import stat
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from trainyard.client.errors import SettingError
from trainyard.client.listeners import listener_uids
from trainyard.contract.layout import write_atomic
from trainyard.contract.local_paths import is_loopback
from trainyard.contract.wire.sign_in import audience


@dataclass(frozen=True)
class SignIn:
    """One sign-in at a service."""

    url: str
    token: str
    name: str
    expires_at: str
    """RFC 3339, UTC."""
    listeners: tuple[int, ...] | None = None
    """Accounts that listened on the port of a loopback URL at the sign-in; None for other URLs, or if not known."""

    @property
    def is_expired(self) -> bool:
        return datetime.fromisoformat(self.expires_at) <= datetime.now(UTC)


@dataclass(frozen=True)
class SignIns:
    """The content of the file: sign-ins by service, and the service of the last sign-in."""

    services: dict[str, SignIn]
    last: str | None = None

    @property
    def last_url(self) -> str | None:
        """The URL of the last sign-in, unless that was on the loopback address of another machine."""
        known = self.services.get(self.last or "")
        return known.url if known is not None and self.at(known.url) is known else None

    def at(self, url: str) -> SignIn | None:
        """Return the sign-in at the service with this URL; None if there is none."""
        try:
            return self.services.get(audience(url, socket.gethostname()))
        except ValueError:
            return None

    def token(self, url: str) -> str | None:
        """Return the token for this URL; None without a valid token, or if another account may receive it.

        While a service on this machine is down, any account could listen on its port.
        """
        known = self.at(url)
        if known is None or known.is_expired:
            return None
        uids = _listeners(url)
        if known.listeners is not None and uids is not None and (not uids or set(uids) - {0, *known.listeners}):
            return None
        return known.token

    def with_sign_in(self, url: str, *, token: str, name: str, expires_at: datetime) -> "SignIns":
        """Return the sign-ins with an added sign-in."""
        key = audience(url, socket.gethostname())
        new = SignIn(url, token, name, expires_at.astimezone(UTC).isoformat(), _listeners(url))
        return SignIns({**self.services, key: new}, key)

    def without(self, url: str) -> "SignIns":
        """Return the sign-ins without the service at this URL."""
        key = audience(url, socket.gethostname())
        services = {name: one for name, one in self.services.items() if name != key}
        return replace(self, services=services, last=None if self.last == key else self.last)

    def save(self) -> None:
        """Replace the file."""
        path = sign_ins_file()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = {"last": self.last, "services": {key: asdict(one) for key, one in self.services.items()}}
        write_atomic(path, json.dumps(content, indent=2) + "\n", mode=0o600)


def sign_ins_file() -> Path:
    """`$XDG_CONFIG_HOME/trainyard/sign_ins.json`, or `~/.config/trainyard/sign_ins.json`."""
    base = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path.home() / ".config"
    return base / "trainyard" / "sign_ins.json"


def load_sign_ins() -> SignIns:
    """Read the file; empty if the file does not exist or belongs to another account.

    Raises:
        SettingError: others can read the file, or its content is damaged.
    """
    path = sign_ins_file()
    try:
        status = path.stat()
        if status.st_uid != os.geteuid():
            return SignIns({})  # For example, the file of the user who runs this by sudo.
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise SettingError(f"{path} contains tokens but is readable by others: chmod 600 {path}")
        content = json.loads(path.read_text())
        services = {str(key): _parse(fields) for key, fields in content["services"].items()}
        return SignIns(services, content["last"])
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return SignIns({})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise SettingError(f"{path} is damaged; remove it and sign in again with: trainyard login") from None


def _parse(fields: dict[str, Any]) -> SignIn:
    listeners = fields["listeners"]
    expires_at = str(fields["expires_at"])
    if datetime.fromisoformat(expires_at).tzinfo is None:
        raise ValueError(expires_at)
    return SignIn(
        url=str(fields["url"]),
        token=str(fields["token"]),
        name=str(fields["name"]),
        expires_at=expires_at,
        listeners=None if listeners is None else tuple(int(uid) for uid in listeners),
    )


def _listeners(url: str) -> tuple[int, ...] | None:
    """Return the accounts that listen on the port of a loopback URL; None for other URLs, or if not known."""
    parsed = httpx.URL(url)
    if not is_loopback(parsed.host):
        return None
    uids = listener_uids(parsed.port or (443 if parsed.scheme == "https" else 80))
    return None if uids is None else tuple(sorted(uids))
