"""Users' code: kept by digest where workers reach it, never opened by the service."""
