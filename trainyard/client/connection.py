"""URL and token of the service: from the arguments, the environment, or the state folder of a local service."""

import os
from dataclasses import dataclass
from pathlib import Path

import httpx

from trainyard.client.errors import SettingError
from trainyard.client.listeners import listener_uids
from trainyard.client.sign_ins import load_sign_ins
from trainyard.contract.local_paths import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    admin_token_file,
    default_state_dir,
    is_loopback,
    service_url_file,
)


@dataclass(frozen=True)
class Connection:
    """A service and an identity."""

    url: str
    token: str | None
    local: bool
    """The service is on this machine; proxy settings are ignored."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def connection(url: str | None = None, token: str | None = None) -> Connection:
    """Return the connection, with defaults from `TRAINYARD_URL` and `TRAINYARD_TOKEN`, from `trainyard login`, or from
    the state folder of the service on this machine, which holds its URL while it runs, and its admin token.

    Raises:
        SettingError: the URL is invalid, or the token cannot be a header.
    """
    own_url = _read(service_url_file(_state_dir()))
    url = default_url(url)
    # The admin token is sent to this machine alone. The service may listen on an address other than loopback.
    local = _is_loopback(url) or url == own_url
    token = _stripped(token, "TRAINYARD_TOKEN") or load_sign_ins().token(url) or (_admin_token(url) if local else None)
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise SettingError("the token contains invalid characters; check TRAINYARD_TOKEN")
    return Connection(url, token, local)


def default_url(url: str | None = None) -> str:
    """Return the URL, with the defaults of `connection`.

    Raises:
        SettingError: it must be read from the file of sign-ins, which others can read or which is damaged.
    """
    given = _stripped(url, "TRAINYARD_URL") or _read(service_url_file(_state_dir()))
    return (given or load_sign_ins().last_url or _local_url()).rstrip("/")


def _stripped(value: str | None, name: str) -> str:
    """Return the argument or the environment variable, without the surrounding whitespace of a pasted line."""
    return (value or "").strip() or os.environ.get(name, "").strip()


def _is_loopback(url: str) -> bool:
    """Return whether the URL's host is a loopback address. Raises SettingError: the URL is invalid."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise SettingError(f"{url!r} is not a URL ({error}); check TRAINYARD_URL") from None
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise SettingError(f"{url!r} is not an http:// or https:// URL; check TRAINYARD_URL")
    if parsed.path.rstrip("/").endswith("/v1"):
        raise SettingError(f"{url!r} ends in /v1, which the client adds itself; check TRAINYARD_URL")
    return is_loopback(parsed.host)


def _local_url() -> str:
    return f"http://{DEFAULT_HOST}:{os.environ.get('TRAINYARD_PORT') or DEFAULT_PORT}"


def _admin_token(url: str) -> str | None:
    """Return the admin token if the service's account, or root, listens on the URL's port.

    While the service is down, any account of this machine could listen there and receive the token.

    Raises:
        SettingError: another account listens on the port.
    """
    file = own_admin_token_file()
    if (token := _read(file)) is None:
        return None
    parsed = httpx.URL(url)
    uids = listener_uids(parsed.port or (443 if parsed.scheme == "https" else 80))
    if uids is None:
        return token
    if uids - {0, file.stat().st_uid}:
        raise SettingError(
            f"a program of another account listens at {url}, so the admin token is not sent there; start the service, "
            "or set TRAINYARD_TOKEN to a token for that service"
        )
    return token if uids else None


def own_admin_token_file() -> Path:
    """Return the file in which the service on this machine has its admin token, by the settings of this shell."""
    given = os.environ.get("TRAINYARD_ADMIN_TOKEN_FILE")
    return Path(given) if given else admin_token_file(_state_dir())


def _state_dir() -> Path:
    folder = os.environ.get("TRAINYARD_STATE_DIR")
    return Path(folder).expanduser() if folder else default_state_dir()


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None
