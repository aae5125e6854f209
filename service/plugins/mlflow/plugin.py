"""MLflow's REST API, for reading."""

from service.api.plugin import Plugin
from service.plugins.mlflow.errors import PREFIX, mlflow_error
from service.plugins.mlflow.routes import fallback_router, history_router, router

MLFLOW = Plugin(
    name="mlflow", prefixes=(PREFIX,), routers=(router, history_router, fallback_router), render_error=mlflow_error
)
