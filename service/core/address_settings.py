"""Settings of where the service listens, and where users and workers reach it."""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from trainyard.contract.local_paths import DEFAULT_HOST, DEFAULT_PORT

_PATH_SEGMENT = re.compile(r"(?!\.\.?$)[A-Za-z0-9._~-]+")


def _parse_service_url(text: str) -> str:
    """Return a URL of the service without the slash at its end; an empty text stays empty.

    Raises:
        ValueError: it is not an http or https URL with a host, or has more than a path of plain segments.
    """
    if not text:
        return ""
    try:
        url = urlsplit(text.rstrip("/"))
        is_plain = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError as error:
        raise ValueError(f"`{text}` is not a URL: {error}") from None
    if not is_plain or "@" in url.netloc or url.query or url.fragment:
        raise ValueError(f"`{text}` is not a URL such as https://portal.example.org/trainyard")
    if not all(map(_PATH_SEGMENT.fullmatch, url.path.split("/")[1:])):
        raise ValueError(
            f"the path of `{text}` has a segment that is empty or has other characters than A-Z a-z 0-9 . _ ~ -"
        )
    return url.geturl()


_ServiceUrl = Annotated[str, AfterValidator(_parse_service_url)]


class AddressSettings(BaseSettings):
    """The part of the settings about addresses."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    host: str = DEFAULT_HOST
    """Address on which the service listens; `0.0.0.0`: all of this machine."""
    port: Annotated[int, Field(ge=0, le=65535)] = DEFAULT_PORT
    """Port on which it listens; 0: any free port."""
    public_url: _ServiceUrl = ""
    """URL of the service for users, and for workers without WORKER_URL; default `http://<host>:<port>`. Its path is
    where a proxy serves it, such as `https://portal.example.org/trainyard`."""
    worker_url: _ServiceUrl = ""
    """URL of the service for workers, where the nodes do not pass through the proxy of PUBLIC_URL; with or without the
    path of that URL. Default: PUBLIC_URL."""
    worker_ca_file: Path | None = None
    """File with the certificate authorities that workers trust (`SSL_CERT_FILE`), as the nodes see it; for a service
    with a certificate of your own authority. Default: the node's authorities."""
    allowed_hosts: Annotated[tuple[str, ...], NoDecode] = ()
    """Further host names of the service, comma-separated; its own name and the names in PUBLIC_URL
    and WORKER_URL are always allowed."""
    trusted_proxies: Annotated[tuple[str, ...], NoDecode] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` is trusted, comma-separated."""

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ip_network(proxy)
            except ValueError:
                raise ValueError(f"`{proxy}` is neither an address nor a network such as 10.1.0.0/16") from None
        return proxies

    @property
    def service_url(self) -> str:
        """URL of the service for users and other machines."""
        return self.public_url or self.local_url

    @property
    def url_for_workers(self) -> str:
        return self.worker_url or self.service_url

    @property
    def base_path(self) -> str:
        """The path below which users reach the service, such as `/trainyard`; empty at the root of a host."""
        return urlsplit(self.public_url).path

    @property
    def local_url(self) -> str:
        """URL of the service on its own machine, without a proxy in between."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 (a name to replace)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
