"""The policy for webhook URLs: https to public addresses on ports of the web, or hosts that an administrator allows.

Pure functions.

The addresses of a host are checked when the webhook is created and before every delivery. The connection goes to the
checked address, so that a DNS answer that changes in between (DNS rebinding) has no effect.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = (IPv4Network("192.0.0.0/24"), IPv4Network("168.63.129.16/32"), IPv6Network("3fff::/20"))
"""Networks that `is_global` may call public: protocol assignments, where some clouds serve metadata (192.0.0.192), the
address at which Azure serves it, and documentation."""
_PORTS = (80, 443)
"""Ports of hosts that no administrator allows: others are of mail, databases and the like, which a user could probe."""
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class ForbiddenTargetError(Exception):
    """The policy forbids this URL; the message contains the reason."""


@dataclass(frozen=True)
class Target:
    """A parsed URL."""

    scheme: str
    host: str
    """A name in lower case, or an address without brackets."""
    port: int
    path: str
    """Includes the query."""
    exempt: bool
    """Whether an administrator allows http, private addresses and other ports for this host."""

    @property
    def authority(self) -> str:
        """The value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.scheme == "https" else 80
        return name if self.port == default else f"{name}:{self.port}"


def parse_target(url: str, allowed: Collection[str]) -> Target:
    """Parse a webhook's URL and check all but its addresses.

    Args:
        allowed: The exempt hosts, each as `name`, with all its ports, or `name:port`.

    Raises:
        ForbiddenTargetError: the URL is malformed or not allowed.
    """
    if not url.isascii() or not url.isprintable() or any(sign in url for sign in ' \\"<>^`{|}'):
        raise ForbiddenTargetError("contains a character that is not allowed in a URL")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise ForbiddenTargetError("is not a URL") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ForbiddenTargetError("must begin with https:// and name a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ForbiddenTargetError("must not contain a user, password or fragment")
    _check_host(host)
    port = port or (443 if parts.scheme == "https" else 80)
    exempt = host in allowed or f"{host}:{port}" in allowed
    if parts.scheme == "http" and not exempt:
        raise ForbiddenTargetError(
            "must begin with https://; an administrator can allow http for single hosts "
            "(TRAINYARD_WEBHOOK_ALLOWED_HOSTS)"
        )
    if port not in _PORTS and not exempt:
        raise ForbiddenTargetError(
            f"names port {port}, and only 80 and 443 are allowed; an administrator can allow `{host}:{port}` "
            "(TRAINYARD_WEBHOOK_ALLOWED_HOSTS)"
        )
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, exempt)


def _check_host(host: str) -> None:
    """Raises ForbiddenTargetError: neither a host name nor an address in canonical form (`127.1` is not)."""
    try:
        ip_address(host)
        return
    except ValueError:
        labels = host.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels) or len(host) > 253:
        raise ForbiddenTargetError("does not contain a valid host name")
    if _NUMBER.fullmatch(labels[-1]):
        raise ForbiddenTargetError("contains an address that is not in canonical form")


def choose_address(target: Target, addresses: Sequence[str]) -> str:
    """Return the address to connect to. A single forbidden address makes the whole list forbidden.

    Raises:
        ForbiddenTargetError: there is no address, or an address is not public.
    """
    if not addresses:
        raise ForbiddenTargetError(f"names the host {target.host}, which has no address")
    for text in addresses:
        if not target.exempt and not is_public(ip_address(text.partition("%")[0])):
            # The address would tell a user the names of the service's own network.
            raise ForbiddenTargetError(
                "resolves to an address that is not public; an administrator can allow single hosts "
                "(TRAINYARD_WEBHOOK_ALLOWED_HOSTS)"
            )
    return addresses[0]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is public, after unwrapping IPv4 addresses inside IPv6 addresses."""
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1]
        if inner is None and address in _NAT64:
            inner = IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved
