"""Rejects unknown and repeated query parameters, so that no filter is silently ignored."""

from collections import Counter
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant

from service.core.errors import InvalidRequestError


def refuse_unknown(request: Request) -> None:
    """Check the query of a request; called by authentication, and so for every route under `/v1`.

    Raises:
        InvalidRequestError: the matched route does not have a parameter, or a single-valued parameter is repeated.
    """
    if not request.url.query:
        return
    route = request.scope["route"]
    known = dict(_known(route.dependant))
    families = _families(route)
    counts = Counter(name for name, _ in request.query_params.multi_items())
    for name, count in counts.items():
        if name not in known and not (name.endswith("]") and name.startswith(families)):
            names = [*known, *(f"{family}key]" for family in families)]
            raise InvalidRequestError(_message(name, names), param=name, code="unknown_parameter")
        if not known.get(name) and count > 1:
            raise InvalidRequestError("is repeated; it takes one value", param=name, code="repeated_parameter")


def metadata_filter(request: Request) -> dict[str, str]:
    """Return the labels of query parameters such as `metadata[team]=nlp`: {"team": "nlp"}."""
    return _family(request, "metadata[")


def parameters_filter(request: Request) -> dict[str, str]:
    """Return the reported parameters of query parameters such as `parameters[lr]=3e-4`: {"lr": "3e-4"}."""
    return _family(request, "parameters[")


def _family(request: Request, prefix: str) -> dict[str, str]:
    items = request.query_params.items()
    return {name[len(prefix) : -1]: value for name, value in items if name.startswith(prefix) and name[-1] == "]"}


def _message(name: str, known: list[str]) -> str:
    if not known:
        return "unknown query parameter; this route takes none"
    near = get_close_matches(name, known, n=1)
    suggestion = f"; did you mean `{near[0]}`?" if near else ";"
    return f"unknown query parameter{suggestion} this route takes {', '.join(known)}"


def _known(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Yield each parameter's name, and whether it can have several values."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        yield field.alias, any(get_origin(one) is list for one in (kind, *get_args(kind)))
    for inner in dependant.dependencies:
        yield from _known(inner)


def _families(route: Any) -> tuple[str, ...]:
    """Return the prefixes of parameters such as `metadata[team]`, which the route declares as `deepObject`."""
    parameters = (route.openapi_extra or {}).get("parameters", ())
    return tuple(f"{one['name']}[" for one in parameters if one.get("style") == "deepObject")
