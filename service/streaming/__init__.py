"""Live streams: of one job, and of all jobs."""
