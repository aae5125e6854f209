"""Live streams: of a job, and of all jobs."""
