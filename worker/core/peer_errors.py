"""Errors that a rank has only because another rank failed. Imports nothing, since torchrun waits for the import."""

_TEXTS = (
    "connection closed by peer",
    "connection reset by peer",
    "gloo/transport",
    "nccl communicator was aborted",
    "remote process exited",
    "broken pipe",
    "timed out waiting",
)


def is_from_peer(message: str) -> bool:
    """Return whether the message of an error blames the connection to another rank."""
    return any(text in message.lower() for text in _TEXTS)
