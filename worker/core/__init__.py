"""What launcher and ranks share: errors, process groups, processes, random state. The lowest layer of the worker."""
