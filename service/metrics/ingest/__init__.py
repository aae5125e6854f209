"""Ingest of points: decoded, queued in bounded memory, and written in groups."""
