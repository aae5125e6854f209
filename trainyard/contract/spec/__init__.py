"""The training spec: its fields, their validation, and how a spec is resolved, compared and documented."""
