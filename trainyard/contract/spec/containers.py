"""The container of a spec: its image, its mounts, and which of them a site allows. Pure functions.

Images and mounts become arguments of a container runtime, so they must not contain characters that a runtime
interprets: blank, comma, colon inside of a path, dollar, quote or backslash.
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, StringConstraints

from trainyard.contract.base import Strict

ContainerRuntime = Literal["apptainer", "charliecloud", "docker", "enroot", "podman", "pyxis"]

MAX_MOUNTS = 32
_MAX_LENGTH = 1024
_PATH = re.compile(r"/[A-Za-z0-9._+@=/-]*")
_PATH_RULE = "use an absolute path without `..`, of letters, digits and ._+@=/-"
_COMPONENT = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(
    rf"(?P<first>{_COMPONENT}(?::\d{{1,5}}(?=/))?)(?P<rest>(?:/{_COMPONENT})*)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_SCHEME = "docker://"
_TRANSPORTS = frozenset(
    {
        *("containers-storage", "dir", "docker-archive", "docker-daemon", "instance", "oci", "oci-archive", "ostree"),
        *("sif", "tarball"),
    }
)
"""Names before a colon that runtimes would read as a source other than a registry."""
_SYSTEM_TARGETS = ("/dev", "/proc", "/sys")


class Mount(NamedTuple):
    """A folder or file of the nodes that a container sees."""

    source: str
    target: str
    read_only: bool = False


def parse_mount(text: str) -> Mount:
    """Parse `source:target` or `source:target:ro`. Raises ValueError: the text does not have this form."""
    source, colon, rest = text.partition(":")
    target, separator, flag = rest.partition(":")
    if not colon or (separator and flag not in ("ro", "rw")):
        raise ValueError(f"`{text}` is not `source:target` or `source:target:ro`")
    for path in (source, target):
        if not is_plain_path(path):
            raise ValueError(f"`{path}` cannot be mounted: {_PATH_RULE}")
    if target == "/" or any(PurePosixPath(target).is_relative_to(folder) for folder in _SYSTEM_TARGETS):
        raise ValueError(f"`{target}` belongs to the container itself; mount to another path")
    return Mount(source, target, read_only=flag == "ro")


def is_plain_path(path: str) -> bool:
    """Return whether a path is absolute, normal, and without characters that a runtime interprets."""
    return bool(_PATH.fullmatch(path)) and str(PurePosixPath(path)) == path and ".." not in PurePosixPath(path).parts


def is_image_path(image: str) -> bool:
    """Return whether the image is a folder or file; else it is a reference such as `nvcr.io/nvidia/pytorch:25.01`."""
    return image.startswith("/")


class Reference(NamedTuple):
    """The parts of an image reference."""

    registry: str
    """Empty: the default of the runtime."""
    name: str
    """With tag and digest."""

    def __str__(self) -> str:
        return f"{self.registry}/{self.name}" if self.registry else self.name


def parse_reference(image: str) -> Reference:
    """Parse an image reference, with or without `docker://` before it.

    Raises:
        ValueError: The text is not an image reference.
    """
    match = _REFERENCE.fullmatch(image.removeprefix(_SCHEME))
    if match is None or (not match["rest"] and match["first"] in _TRANSPORTS):
        raise ValueError(
            f"`{image}` is neither a path nor an image reference such as `nvcr.io/nvidia/pytorch:25.01-py3`; "
            f"for a path, {_PATH_RULE}"
        )
    first, suffix = match["first"], (match["tag"] or "") + (match["digest"] or "")
    # The rule by which every runtime separates the registry from the name.
    if match["rest"] and (re.search(r"[.:]", first) or first == "localhost"):
        return Reference(first, match["rest"][1:] + suffix)
    return Reference("", first + match["rest"] + suffix)


def _check_image(image: str) -> str:
    if is_image_path(image):
        if not is_plain_path(image) or image == "/":
            raise ValueError(f"`{image}` cannot be an image: {_PATH_RULE}")
    else:
        parse_reference(image)
    return image


def _check_mount(text: str) -> str:
    parse_mount(text)
    return text


_Text = Annotated[str, StringConstraints(min_length=1, max_length=_MAX_LENGTH)]
Image = Annotated[_Text, AfterValidator(_check_image)]
MountText = Annotated[str, StringConstraints(min_length=1, max_length=2 * _MAX_LENGTH), AfterValidator(_check_mount)]


class Container(Strict):
    """A container image in which the ranks run."""

    image: Image
    """The image: a path under an allowed root of the service, in a form that the site's runtime reads (a folder, or a
    SIF, squashfs or `docker save` file), or a reference such as `nvcr.io/nvidia/pytorch:25.01-py3`, if the
    administrator allows it (`TRAINYARD_CONTAINER_IMAGES`)."""
    mounts: Annotated[tuple[MountText, ...], Field(max_length=MAX_MOUNTS)] = ()
    """Further mounts, `source:target` or `source:target:ro`; the source is under an allowed root. The run directory and
    the allowed roots are always mounted, at their own paths."""


def container_paths(container: Container) -> list[tuple[str, str]]:
    """Return each path that must be under the allowed roots, after its field."""
    image = [("environment.container.image", container.image)] if is_image_path(container.image) else []
    sources = [parse_mount(text).source for text in container.mounts]
    return image + [(f"environment.container.mounts.{index}", source) for index, source in enumerate(sources)]


def container_problems(
    container: Container, runtime: ContainerRuntime | None, patterns: tuple[str, ...]
) -> Iterator[tuple[str, str]]:
    """Yield field and message of each value of a container that the site does not allow. Paths are checked elsewhere.

    Args:
        patterns: The image references that are allowed, as shell-style patterns.
    """
    if runtime is None:
        yield (
            "environment.container",
            "needs a container runtime, and this service has none: ask an administrator to set "
            "TRAINYARD_CONTAINER_RUNTIME",
        )
        return
    if runtime == "charliecloud":
        for index, text in enumerate(container.mounts):
            if parse_mount(text).read_only:
                message = "cannot be read-only, since charliecloud has no such mounts; remove `:ro`"
                yield f"environment.container.mounts.{index}", message
    if is_image_path(container.image):
        if runtime == "docker":
            yield (
                "environment.container.image",
                "is a path, and docker runs no image from a file: `docker load` it, and use its reference",
            )
    elif not any(fnmatchcase(str(parse_reference(container.image)), pattern) for pattern in patterns):
        yield (
            "environment.container.image",
            "is none of the images that this service allows (TRAINYARD_CONTAINER_IMAGES): "
            + (", ".join(patterns) or "none; use a file under TRAINYARD_ALLOWED_ROOTS"),
        )
    elif runtime == "enroot" and "/" in container.image.removeprefix(_SCHEME):
        yield (
            "environment.container.image",
            "is in a registry, and enroot starts only files and containers of a node; use a file of `enroot import`",
        )
