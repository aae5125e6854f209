"""Writing, validating, loading and removing checkpoints."""
