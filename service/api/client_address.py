"""The address of a client behind trusted proxies. Pure functions."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the last address of the proxy chain that belongs to no trusted proxy.

    Each proxy appends the address of its caller, so the list is read from its end for as long as trusted proxies wrote
    it.

    Args:
        peer: The address that opened the connection.
        forwarded: The header `X-Forwarded-For`, which any client can send.
    """
    address = peer
    for text in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
        if not _is_trusted(address, trusted):
            break
        try:
            address = str(ip_address(text))
        except ValueError:
            break
    return address


def _is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return any(address in network for network in trusted)
