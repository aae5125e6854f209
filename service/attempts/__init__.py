"""The worker protocol: claim, heartbeat, reports and finish of an attempt."""
