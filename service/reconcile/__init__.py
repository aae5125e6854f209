"""The reconciler: moves what is so toward what is wanted. It alone talks to the scheduler."""
