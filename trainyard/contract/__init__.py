"""What a job is and what the parts say to each other. Imports nothing of ours; every other package imports this."""
