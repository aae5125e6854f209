"""Sweeps: a spec in several variants, whose members are ordinary jobs."""
