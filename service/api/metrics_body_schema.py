"""What OpenAPI says about the metrics route, whose body the framework does not parse."""

from typing import Any

from trainyard.contract.wire.reports import MetricsBatch


def _inlined(node: Any, parts: dict[str, Any]) -> Any:
    """The schema with every reference to its own parts replaced by the part."""
    if isinstance(node, list):
        return [_inlined(one, parts) for one in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if reference is not None:
        return _inlined(parts[reference.rsplit("/", 1)[1]], parts)
    return {key: _inlined(value, parts) for key, value in node.items() if key != "$defs"}


def metrics_body() -> dict[str, Any]:
    """The request body of the metrics route."""
    schema = MetricsBatch.model_json_schema()
    content = {"application/json": {"schema": _inlined(schema, schema.get("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


METRICS_BODY = metrics_body()
