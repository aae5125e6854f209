"""What is trained: a model, its data and its loss."""
