"""The client address of a request behind proxies."""

from ipaddress import ip_network

import pytest

from service.api.client_address import client_address, client_network

PROXIES = (ip_network("10.0.0.0/8"), ip_network("::1"))


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", "192.0.2.1"),
        ("10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", "198.51.100.7"),
        ("10.0.0.1", "evil\n, <script>", "10.0.0.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("::1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("testclient", "198.51.100.7", "testclient"),
        ("10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7"),
        ("10.0.0.1", "198.51.100.7, ::ffff:10.0.0.2", "198.51.100.7"),
        ("::ffff:192.0.2.1", "", "192.0.2.1"),
        ("10.0.0.1", "2001:db8::1%eth0", "2001:db8::1"),
    ],
)
def test_only_trusted_proxies_forward_addresses(peer: str, forwarded: str, expected: str) -> None:
    assert client_address(peer, forwarded, PROXIES) == expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::1%eth0", "2001:db8::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_clients_are_limited_by_ipv4_address_or_ipv6_network(address: str, expected: str) -> None:
    assert client_network(address) == expected
