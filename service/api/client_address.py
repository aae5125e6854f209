"""From where a request came, if proxies stand between. Pure."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """The nearest address that no trusted proxy has.

    Each proxy appends the one that it was called from, so that the list is believed from its end for as long as
    trusted proxies wrote it.

    Args:
        peer: who opened the connection.
        forwarded: `X-Forwarded-For`, which anybody can send.
    """
    found = peer
    for text in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
        if not _is_trusted(found, trusted):
            break
        try:
            found = str(ip_address(text))
        except ValueError:
            break
    return found


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return any(address in network for network in trusted)
