"""The environment variables with which trackers find the listener."""

from collections.abc import Mapping

LISTENER_URL = "TRAINYARD_TRACKER_URL"
LISTENER_SECRET = "TRAINYARD_TRACKER_SECRET"  # noqa: S105 (a variable's name)


def tracker_token(secret: str, execution: int) -> str:
    """Return the token with which the ranks of an execution report."""
    return f"{secret}.{execution}"


def tracker_variables(base: Mapping[str, str], execution: int) -> dict[str, str]:
    """Return the variables of trackers for a rank; none for a tracker whose server the job has set itself.

    Args:
        base: The environment of the rank, with the variables of the spec.
    """
    url, secret = base.get(LISTENER_URL), base.get(LISTENER_SECRET)
    if not url or not secret or "MLFLOW_TRACKING_URI" in base:
        return {}
    return {"MLFLOW_TRACKING_URI": url, "MLFLOW_TRACKING_TOKEN": tracker_token(secret, execution)}
