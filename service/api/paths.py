"""Which paths belong to the API, whose clients send a token, and not to the dashboard."""

from service.mlflow.errors import PREFIX as MLFLOW_PREFIX
from service.openai.errors import PREFIX as OPENAI_PREFIX

_PREFIXES = ("/v1/", MLFLOW_PREFIX, OPENAI_PREFIX)


def is_api(path: str) -> bool:
    return path.startswith(_PREFIXES)
