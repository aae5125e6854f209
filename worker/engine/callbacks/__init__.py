"""Policies around the training loop, one module for each."""
