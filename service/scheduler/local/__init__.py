"""The scheduler port on this machine."""
