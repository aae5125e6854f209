"""Programs of a user beside a rank: a shell or a command on its node, in the environment or container of the ranks."""
