"""The scheduler's resources: read seldom, stored, and compared with the resources that a job requests."""
