"""Sweeps: one spec in several variants, whose members are ordinary jobs."""
