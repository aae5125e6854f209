"""The scheduler port on Slurm."""
