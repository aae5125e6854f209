"""Webhooks: who wants to be told of changes of status, what they are told, and how it gets there."""
