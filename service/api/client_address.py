"""The address of a client behind trusted proxies. Pure functions."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

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
        if not is_trusted(address, trusted):
            break
        try:
            address = str(ip_address(text))
        except ValueError:
            break
    return address


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address, IPv4 also where an IPv6 socket reports it as `::ffff:192.0.2.1`; None if it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def client_network(text: str) -> str:
    """Return the key by which a client is limited: its address; for IPv6 its /64 network, all of which it can have."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return text if address is None else str(address)


def is_trusted(text: str, trusted: Sequence[Network]) -> bool:
    """Return whether an address belongs to a trusted proxy."""
    address = parse_address(text)
    return address is not None and any(address in network for network in trusted)
