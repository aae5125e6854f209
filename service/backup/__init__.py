"""Backup of the database to a file, and restore from it."""
