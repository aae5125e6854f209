"""The address of a client behind trusted proxies. Pure functions."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Network = IPv4Network | IPv6Network


def client_address(peer: str, forwarded: str, trusted: Sequence[Network]) -> str:
    """Return the last address of the proxy chain that belongs to no trusted proxy, in the form of `parse_address`.

    Each proxy appends the address of its caller, so the list is read from its end for as long as trusted proxies wrote
    it.

    Args:
        peer: The address that opened the connection.
        forwarded: The header `X-Forwarded-For`, which any client can send.
    """
    address = parse_address(peer)
    for text in reversed([part.strip() for part in forwarded.split(",") if part.strip()]):
        if address is None or not _is_in(address, trusted):
            break
        if (caller := parse_address(text)) is None:
            break
        address = caller
    return peer if address is None else str(address)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address, IPv4 also where an IPv6 socket reports it as `::ffff:192.0.2.1`; None if it is none.

    The zone of an IPv6 address is left out: any text can be a zone.
    """
    try:
        address = ip_address(text.partition("%")[0])
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
    return address is not None and _is_in(address, trusted)


def _is_in(address: IPv4Address | IPv6Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
