"""Metrics of jobs: ingest, downsampling and queries."""
