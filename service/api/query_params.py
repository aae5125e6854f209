"""The query parameters that a route knows, and the refusal of all others: no filter must be ignored."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant

from service.core.errors import InvalidRequestError


def refuse_unknown(request: Request) -> None:
    """Raises InvalidRequestError: the query holds a parameter that the matched route does not know, or several values
    of one that can have one: all but the last would be ignored.

    Called where a caller is authenticated, so that it holds for every route under `/v1`.
    """
    if not request.url.query:
        return
    route = request.scope["route"]
    known = dict(_known(route.dependant))
    families = _families(route)
    for name in request.query_params:
        if name not in known and not (name.endswith("]") and name.startswith(families)):
            told = [*known, *(f"{family}key]" for family in families)]
            raise InvalidRequestError(_words(name, told), param=name, code="unknown_parameter")
        if not known.get(name) and len(request.query_params.getlist(name)) > 1:
            raise InvalidRequestError("is given twice; it takes one value", param=name, code="repeated_parameter")


def metadata_filter(request: Request) -> dict[str, str]:
    """Return the labels of query parameters such as `metadata[team]=nlp`: {"team": "nlp"}."""
    items = request.query_params.items()
    return {
        name[len("metadata[") : -1]: value for name, value in items if name.startswith("metadata[") and name[-1] == "]"
    }


def _words(name: str, known: list[str]) -> str:
    if not known:
        return "unknown query parameter; this route takes none"
    near = get_close_matches(name, known, n=1)
    meant = f"; did you mean `{near[0]}`?" if near else ";"
    return f"unknown query parameter{meant} this route takes {', '.join(known)}"


def _known(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Each parameter's name, and whether it can have several values."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        yield field.alias, any(get_origin(one) is list for one in (kind, *get_args(kind)))
    for inner in dependant.dependencies:
        yield from _known(inner)


def _families(route: Any) -> tuple[str, ...]:
    """How parameters such as `metadata[team]` begin: those that the route announces as `deepObject`."""
    told = (route.openapi_extra or {}).get("parameters", ())
    return tuple(f"{one['name']}[" for one in told if one.get("style") == "deepObject")
