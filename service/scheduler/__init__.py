"""The port to whatever runs jobs, and its adapters."""
