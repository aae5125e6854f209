"""Policies around the training loop, each in its own module."""
