"""Registered models: names, versions of them that are models of jobs, and aliases that move."""
