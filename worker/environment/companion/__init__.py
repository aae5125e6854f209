"""Companions: programs of a user on the node of a rank, in the environment or container of the ranks."""
