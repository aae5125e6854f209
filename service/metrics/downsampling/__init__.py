"""Downsampling of curves at several resolutions, while points arrive."""
