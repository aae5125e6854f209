"""Authentication: API tokens of users, attempt tokens of workers, and browser sessions."""
