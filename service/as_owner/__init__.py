"""Acting as the Unix account of a job's owner: a helper program, and the calls of it."""
