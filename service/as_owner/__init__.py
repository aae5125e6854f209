"""Operations of the service as the Unix account of a job's owner: a helper program, and the calls of it."""
