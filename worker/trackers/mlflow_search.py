"""Searches of MLflow's client for experiments, runs and models: conditions, order and pages. Pure functions."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from trainyard.contract.mlflow_filter import Condition, FilterError, Kind, Order, Value, parse_filter, parse_order
from worker.trackers.tracker_requests import TrackerError

Document = dict[str, Any]
_MAX_RESULTS = 50_000
_ONLY_DELETED = "DELETED_ONLY"


class Searchable(Protocol):
    """An object that a search can find."""

    def value(self, kind: Kind, key: str) -> Value:
        """Return the value to compare; None if it does not exist."""


Item = TypeVar("Item", bound=Searchable)


def search(
    items: Sequence[Item], body: Document, attributes: Sequence[str], kinds: Sequence[Kind], *, default: int = 1000
) -> tuple[list[Item], Document]:
    """Return a page of the items that meet a request's filter, in its order, and the fields about the next page.

    Args:
        items: In the order in which they were made; without an order in the request, the newest is the first.
        attributes: The attributes that the items have.
        kinds: The kinds of values that the items have besides attributes.
        default: The number of results on a page if the request names no number.

    Raises:
        TrackerError: The filter, the order or the page cannot be used.
    """
    conditions, orders = _read(body, attributes, kinds)
    matches = [item for item in reversed(items) if all(one.holds(item.value(one.kind, one.key)) for one in conditions)]
    if body.get("view_type") == _ONLY_DELETED or body.get("run_view_type") == _ONLY_DELETED:
        matches = []
    for order in reversed(orders):
        matches = _sorted(matches, order)
    start, end = page_of(body, default=default)
    return matches[start:end], {"next_page_token": str(end)} if end < len(matches) else {}


def page_of(body: Mapping[str, Any], *, default: int) -> tuple[int, int]:
    """Return where the page of a request begins, and where it ends.

    Raises:
        TrackerError: The page cannot be used.
    """
    start = _whole_number(body, "page_token", 0)
    return start, start + min(_whole_number(body, "max_results", default), _MAX_RESULTS)


def _read(
    body: Document, attributes: Sequence[str], kinds: Sequence[Kind]
) -> tuple[Sequence[Condition], Sequence[Order]]:
    orders = body.get("order_by") or []
    orders = [orders] if isinstance(orders, str) else orders
    name = "filter"
    try:
        conditions = parse_filter(str(body.get("filter") or ""), attributes, kinds)
        name = "order_by"
        return conditions, [parse_order(str(one), attributes, kinds) for one in orders]
    except FilterError as error:
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name}: {error}") from None


def _sorted(items: Sequence[Item], order: Order) -> list[Item]:
    """Sort as MLflow does. In both orders, NaN follows the numbers, and items without a value are last."""
    groups: tuple[list[tuple[Any, Item]], list[Item], list[Item]] = ([], [], [])
    for item in items:
        value = item.value(order.kind, order.key)
        if value is None:
            groups[2].append(item)
        elif isinstance(value, float) and math.isnan(value):
            groups[1].append(item)
        else:
            groups[0].append((value, item))
    ordered = sorted(groups[0], key=lambda pair: pair[0], reverse=order.descending)
    return [item for _, item in ordered] + groups[1] + groups[2]


def _whole_number(body: Mapping[str, Any], name: str, default: int) -> int:
    text = str(body.get(name) or default)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise TrackerError(400, "INVALID_PARAMETER_VALUE", f"{name} is {text[:80]!a}, which is not a whole number")
    return int(text)
