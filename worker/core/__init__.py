"""Code of launcher and ranks: errors, process groups, processes, random state. The lowest layer of the worker."""
