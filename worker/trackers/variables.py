"""The environment variables with which trackers find the listener, and the token that names the reporting rank."""

import hmac
import re
from collections.abc import Mapping

from worker.trackers.tracker_requests import Reporter

LISTENER_URL = "TRAINYARD_TRACKER_URL"
LISTENER_SECRET = "TRAINYARD_TRACKER_SECRET"  # noqa: S105 (a variable's name)
SECRET_BYTES = 14
_LISTENER_HOST = "127.0.0.1"
_OWN_WANDB = frozenset({"WANDB_BASE_URL", "WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"})
_NO_LINKS = "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"
_WANDB_PAGES = "WANDB_APP_URL"
_WANDB_INTERVALS = ("WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL", "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL")
_PROXIES = frozenset({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"})
_TOKEN = re.compile(r"([0-9a-f]{28})([0-9]{6})([0-9]{6})", re.ASCII)


def tracker_token(secret: str, reporter: Reporter) -> str:
    """Return the token of a rank: 40 hexadecimal digits, the only form that every version of W&B takes."""
    return f"{secret}{reporter.execution:06d}{reporter.rank:06d}"


def parse_token(token: str) -> tuple[str, Reporter] | None:
    """Return the secret and the rank of a token; None if the text is not a token."""
    match = _TOKEN.fullmatch(token)
    return (match[1], Reporter(int(match[2]), int(match[3]))) if match else None


def signature_of(secret: str, path: str) -> str:
    """Return the signature that replaces the token in a file's address, where W&B's older client sends no token."""
    return hmac.new(secret.encode(), path.encode(), "sha256").hexdigest()


def tracker_variables(base: Mapping[str, str], execution: int, job_page: str | None = None) -> dict[str, str]:
    """Return the variables of trackers for a rank; none for a tracker whose server the job has set itself.

    Args:
        base: The environment of the rank, with the variables of the spec.
        job_page: The address of the job's page, to which the links that clients print lead.
    """
    url, secret = base.get(LISTENER_URL), base.get(LISTENER_SECRET)
    if not url or not secret:
        return {}
    token = tracker_token(secret, Reporter(execution, int(base.get("RANK", "0"))))
    variables: dict[str, str] = {}
    if "MLFLOW_TRACKING_URI" not in base:
        # The client prints links to the server that it reports to, which has no pages.
        quiet = {_NO_LINKS: base.get(_NO_LINKS, "true")}
        variables |= {"MLFLOW_TRACKING_URI": url, "MLFLOW_TRACKING_TOKEN": token} | quiet
        if "MLFLOW_TRACKING_USERNAME" in base:
            # Otherwise the client would send another server's user and password instead of the token.
            variables |= {"MLFLOW_TRACKING_USERNAME": "trainyard", "MLFLOW_TRACKING_PASSWORD": token}
    if not _OWN_WANDB & base.keys():
        # The client's default is to send every 15 seconds and to write blocks of its file as often (before 0.31, only
        # full blocks). It loses the rest when it is killed. It replaces a fraction of a second by the default.
        intervals = {name: base.get(name, "1") for name in _WANDB_INTERVALS}
        variables |= {"WANDB_BASE_URL": url, "WANDB_API_KEY": token} | intervals
        if job_page and _WANDB_PAGES not in base:
            # The client appends the path of its own page, which the service leads to the job's.
            variables[_WANDB_PAGES] = f"{job_page}/wandb"
    if _PROXIES & base.keys():
        # Otherwise MLflow's client asks the proxy of the site for this node's own 127.0.0.1.
        variables |= {
            name: ",".join(filter(None, (base.get(name), _LISTENER_HOST))) for name in ("no_proxy", "NO_PROXY")
        }
    return variables
