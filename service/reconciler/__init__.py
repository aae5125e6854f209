"""The reconciler: moves the actual state of jobs toward the desired state. The only part that calls the scheduler."""
