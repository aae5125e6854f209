"""The policy for webhook URLs."""

from ipaddress import ip_address

import pytest

from service.plugins.webhooks.url_policy import ForbiddenTargetError, choose_address, is_public, parse_target


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.255.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "192.0.0.192",
        "192.0.0.9",
        "168.63.129.16",
        "::ffff:168.63.129.16",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "fd00:ec2::254",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:a00:1",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "2001:db8::1",
        "3fff::1",
    ],
)
def test_private_and_reserved_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1"])
def test_internet_addresses_are_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://example.com/", "must begin with https://"),
        ("http://example.com/", "must begin with https://"),
        ("https://", "must begin with https:// and name a host"),
        ("https://2130706433/", "not in canonical form"),
        ("https://0x7f000001/", "not in canonical form"),
        ("https://0x7f.1/", "not in canonical form"),
        ("https://127.1/", "not in canonical form"),
        ("https://0177.0.0.1/", "not in canonical form"),
        ("https://127.0.0.1.:1/x y", "contains a character"),
        ("https://user:pw@example.com/", "not contain a user, password or fragment"),
        ("https://good.example#@127.0.0.1/", "not contain a user, password or fragment"),
        ("https://exa\nmple.com/", "contains a character"),
        ("https://example.com\\@127.0.0.1/", "contains a character"),
        ("https://\u2460\u2461\u2466.0.0.1/", "contains a character"),
        ("https://[::1/", "is not a URL"),
        ("https://example.com:99999/", "is not a URL"),
        ("https://example.com:22/", r"names port 22, and only 80 and 443 are allowed; .*allow `example.com:22`"),
        ("https://1.1.1.1:8443/", "names port 8443"),
        ("https://[2606:4700::1111]:6379/", "names port 6379"),
        ("https://ex%61mple.com/", "does not contain a valid host name"),
        ("https://a..b/", "does not contain a valid host name"),
    ],
)
def test_forbidden_urls_are_rejected_with_the_reason(url: str, reason: str) -> None:
    with pytest.raises(ForbiddenTargetError, match=reason):
        parse_target(url, ())


def test_one_forbidden_address_among_several_forbids_the_host() -> None:
    target = parse_target("https://example.com/hook?x=1", ())
    assert (target.authority, target.path) == ("example.com", "/hook?x=1")
    assert choose_address(target, ["1.1.1.1", "1.0.0.1"]) == "1.1.1.1"
    with pytest.raises(ForbiddenTargetError, match="resolves to an address that is not public") as caught:
        choose_address(target, ["1.1.1.1", "10.0.0.1"])
    assert "10.0.0.1" not in str(caught.value), "the message tells the names of the service's network"
    with pytest.raises(ForbiddenTargetError, match="has no address"):
        choose_address(target, [])


def test_allowed_hosts_are_matched_by_name_and_port() -> None:
    allowed = ("hooks.internal", "127.0.0.1:9000", "chat.example:8443")
    assert parse_target("https://chat.example:8443/hook", allowed).port == 8443
    for other in ("https://chat.example:8444/hook", "https://chat.example.org:8443/hook"):
        with pytest.raises(ForbiddenTargetError, match="only 80 and 443"):
            parse_target(other, allowed)
    assert parse_target("https://chat.example:80/hook", ()).port == 80
    assert parse_target("http://hooks.internal:81/", allowed).exempt
    assert choose_address(parse_target("http://127.0.0.1:9000/", allowed), ["127.0.0.1"]) == "127.0.0.1"
    with pytest.raises(ForbiddenTargetError):
        parse_target("http://127.0.0.1:9001/", allowed)
    with pytest.raises(ForbiddenTargetError, match="not public"):
        choose_address(parse_target("https://127.0.0.1/", allowed), ["127.0.0.1"])
