"""Saved views of the runs table."""
