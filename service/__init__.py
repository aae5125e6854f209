"""The control plane: REST API, database, reconciler. Never imports torch or the worker."""
