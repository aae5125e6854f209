"""Searches: sweeps whose members are proposed while they run."""
