"""Optimizers that torch lacks, or has not for sharded parameters."""
