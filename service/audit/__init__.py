"""The audit log: an entry for every change that a user requests."""
