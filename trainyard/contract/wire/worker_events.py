"""The events of workers: their types in a job's history, and the data that the known types must have."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictStr, ValidationError

from trainyard.contract.base import NonNegativeInt, PositiveInt, Step, sanitize
from trainyard.contract.bounds import check_plain_data
from trainyard.contract.validation_messages import describe_error
from trainyard.contract.wire.data_accounts import DATA_ACCOUNT, DataAccount

WORKER_PREFIX = "worker."
"""Every event of a worker is stored with this prefix, so that no reader takes it for an event of the service."""

ALERT = "alert"
"""Type of the event by which a program notifies people, such as `wandb.alert`. Webhooks deliver it."""

STALL_SUSPECTED = "stall_suspected"
"""Type of the event of a run that stands still, with the reason. Webhooks deliver it as an alert."""
STALL_OVER = "stall_over"
"""Type of the event that a run goes on after a suspected stall."""
ALERTS = frozenset({ALERT, STALL_SUSPECTED})

MAX_DATA_VALUES = 4000
"""Values in the data of an event, keys included. A communication check has about 1,000."""
MAX_DATA_CHARS = 64 * 1024
"""Characters of all texts in the data of an event."""


def _storable(value: Any, total: list[int]) -> Any:
    """Return a value in which every number has a place in JSON and in the database."""
    if isinstance(value, dict):
        total[0] += sum(len(str(key)) for key in value)
        return {key: _storable(item, total) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(item, total) for item in value]
    if isinstance(value, str):
        total[0] += len(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError("contains an integer of more than 64 bits")
    return value


def _event_data(value: Any) -> Any:
    # Checked first, because the functions after it are recursive.
    check_plain_data(value, max_values=MAX_DATA_VALUES, any_text=True)
    total = [0]
    value = _storable(sanitize(value), total)
    if total[0] > MAX_DATA_CHARS:
        raise ValueError(f"has more than {MAX_DATA_CHARS} characters")
    return value


EventData = Annotated[dict[str, Any], BeforeValidator(_event_data)]
"""The data of an event: bounded in depth, number of values and text; NaN and infinity become strings."""


class _Data(BaseModel):
    """Required data; an event may have more."""

    model_config = ConfigDict(extra="allow", strict=True)


class _Start(_Data):
    step: Step
    total_steps: Step | None


class _Restart(_Data):
    rank: NonNegativeInt | None
    type: StrictStr
    reason: StrictStr


class _ProfileAnswer(_Data):
    request: NonNegativeInt


class _MicroSize(_Data):
    micro_size: PositiveInt


class _Measurement(_Data):
    group: StrictStr
    operation: StrictStr
    size_bytes: NonNegativeInt
    seconds: float
    bus_bytes_per_second: float | None


class _CommCheck(_Data):
    backend: StrictStr
    world_size: PositiveInt
    operations: list[_Measurement]
    not_in_backend: dict[str, list[str]]
    slowest_pair: _Measurement | None


class _Checkpoint(_Data):
    step: Step


class _Dropped(_Data):
    reports: Annotated[int, Field(ge=1)]


class _Alert(_Data):
    title: StrictStr
    text: StrictStr


_REQUIRED: dict[str, type[BaseModel]] = {
    "training_started": _Start,
    "training_resumed": _Start,
    "restarted_in_place": _Restart,
    "profile_written": _ProfileAnswer,
    "profile_dropped": _ProfileAnswer,
    "micro_size_chosen": _MicroSize,
    "comm_check": _CommCheck,
    DATA_ACCOUNT: DataAccount,
    "checkpoint_damaged": _Checkpoint,
    "checkpoint_failed": _Checkpoint,
    "origin_loaded": _Checkpoint,
    "points_lost": _Dropped,
    ALERT: _Alert,
    STALL_SUSPECTED: _Alert,
}


def check_event_data(type_: str, data: dict[str, Any]) -> None:
    """Check the data of an event whose type is read by the service, the client or the dashboard.

    Raises:
        ValueError: The data lacks a value that readers of this type need.
    """
    required = _REQUIRED.get(type_)
    if required is None:
        return
    try:
        required.model_validate(data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(map(str, ("data", *problem["loc"])))
        raise ValueError(f"of type `{type_}`: {field} {describe_error(problem)}") from None
