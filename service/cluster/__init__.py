"""What the scheduler has to run on: read seldom, stored, and compared with what a job asks for."""
