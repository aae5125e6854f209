"""Which examples each step sees, and where they come from."""
