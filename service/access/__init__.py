"""Who is asking: API tokens of people and programs, attempt tokens of workers."""
