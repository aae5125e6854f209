"""Where a webhook may go: to public addresses by https, and else only where an administrator allows the host. Pure.

A name is judged by the addresses that it has, when the webhook is made and at every sending; the connection then goes
to the very address that was judged, so that a name which changes in between gains nothing.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

_NAT64 = IPv6Network("64:ff9b::/96")
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class ForbiddenTargetError(Exception):
    """A webhook may not go there; the message says why."""


@dataclass(frozen=True)
class Target:
    """A URL, taken apart."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    path: str
    """With the query."""
    exempt: bool
    """Whether an administrator allows plain http and private addresses for it."""

    @property
    def authority(self) -> str:
        """For the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = 443 if self.scheme == "https" else 80
        return name if self.port == usual else f"{name}:{self.port}"


def parse_target(url: str, allowed: Collection[str]) -> Target:
    """A webhook's URL.

    Args:
        allowed: `name` or `name:port`, as an administrator lists them.

    Raises:
        ForbiddenTargetError: it is none that a message may go to.
    """
    if not url.isascii() or not url.isprintable() or any(sign in url for sign in ' \\"<>^`{|}'):
        raise ForbiddenTargetError("holds a character that a URL does not")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise ForbiddenTargetError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ForbiddenTargetError("must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ForbiddenTargetError("may have neither user, password nor fragment")
    _check_host(host)
    port = port or (443 if parts.scheme == "https" else 80)
    exempt = host in allowed or f"{host}:{port}" in allowed
    if parts.scheme == "http" and not exempt:
        raise ForbiddenTargetError(
            "must begin with https://; an administrator allows http for single hosts (TRAINYARD_WEBHOOK_ALLOWED_HOSTS)"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, exempt)


def _check_host(host: str) -> None:
    """Raises ForbiddenTargetError: neither a name nor an address in its usual form, as `127.1` is not."""
    try:
        ip_address(host)
        return
    except ValueError:
        labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(host) > 253:
        raise ForbiddenTargetError("does not name a host")
    if _NUMBER.fullmatch(labels[-1]):
        raise ForbiddenTargetError("names an address in an unusual form")


def choose_address(target: Target, found: Sequence[str]) -> str:
    """The address to connect to. One forbidden address among them is enough to refuse all.

    Raises:
        ForbiddenTargetError: the name has no address, or one that is not public.
    """
    if not found:
        raise ForbiddenTargetError(f"names the host {target.host}, which has no address")
    for text in found:
        if not target.exempt and not is_public(ip_address(text.partition("%")[0])):
            raise ForbiddenTargetError(
                f"leads to {text}, which is no public address; an administrator allows single hosts "
                "(TRAINYARD_WEBHOOK_ALLOWED_HOSTS)"
            )
    return found[0]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is anybody's on the internet, and nobody's of this network or machine."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved
