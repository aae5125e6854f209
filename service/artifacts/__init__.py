"""Files that a run leaves beside its weights: listed and handed out, never opened for anything else."""
