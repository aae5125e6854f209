"""The HTTP side of the service: application, middleware, dependencies and OpenAPI."""
