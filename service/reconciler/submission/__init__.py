"""Submission of attempts to the scheduler, so that each runs once."""
