"""The audit log: one entry for every change that a user requests."""
