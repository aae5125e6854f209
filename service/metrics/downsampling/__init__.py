"""Downsampling of curves, done as points arrive, at several resolutions."""
