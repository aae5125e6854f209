"""Tasks: each combines a model, its data and its loss."""
