"""Webhooks: subscriptions to status changes, and the delivery of signed notifications."""
