"""The way of metrics, events and checkpoints from a rank through the spool to the service."""
