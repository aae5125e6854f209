"""The build backend: setuptools, with the synchronous client written before it looks for packages."""

from setuptools import build_meta
from setuptools.build_meta import (
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

from trainyard.installation import sync_client

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_Settings = dict[str, str | list[str] | None] | None


def build_wheel(wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None) -> str:
    sync_client.write()
    file: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    return file


def build_editable(
    wheel_directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    sync_client.write()
    file: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    return file


def build_sdist(sdist_directory: str, config_settings: _Settings = None) -> str:
    sync_client.write()
    file: str = build_meta.build_sdist(sdist_directory, config_settings)
    return file
