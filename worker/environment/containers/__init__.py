"""Ranks in a container: the command of each container runtime, and the processes on both sides of its boundary."""
