"""Trained models, ready to call: found by job, registered name or folder, verified, loaded and generated from."""
