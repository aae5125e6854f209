"""The message of a credential names the service that it is for."""

import pytest

from trainyard.contract.wire.sign_in import audience, sign_in_message


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Yard.Example/", "https://yard.example:443"),
        ("https://yard.example:8443", "https://yard.example:8443"),
        ("http://yard.example/proxy/", "http://yard.example:80/proxy"),
        ("http://127.0.0.1:8470", "http://loopback@node1:8470"),
        ("http://127.0.0.9:8470", "http://loopback@node1:8470"),
        ("http://localhost:8470", "http://loopback@node1:8470"),
        ("http://[::1]:8470", "http://loopback@node1:8470"),
        ("http://[fe80::1]:8470", "http://[fe80::1]:8470"),
    ],
)
def test_audience_is_the_origin_of_the_url(url: str, expected: str) -> None:
    assert audience(url, "Node1") == expected


@pytest.mark.parametrize("url", ["", "yard.example", "http://", "http://a:99999"])
def test_url_without_host_or_port_names_no_service(url: str) -> None:
    with pytest.raises(ValueError, match=r"host|[Pp]ort"):
        audience(url, "node1")


def test_messages_differ_by_service_and_nonce() -> None:
    urls = ("http://a:1", "http://a:2", "https://a:1", "http://b:1", "http://localhost:1")
    messages = {sign_in_message(url, host, nonce) for url in urls for host in ("x", "y") for nonce in ("n", "m")}
    assert len(messages) == 12
