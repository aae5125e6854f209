"""The environment of the ranks: their interpreter and variables, prepared once on each node before the ranks start."""
