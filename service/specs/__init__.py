"""Acceptance of a spec, and the preflight against the cluster."""
