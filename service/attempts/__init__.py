"""The worker protocol: claim, heartbeat, events, checkpoints and exit record of an attempt."""
