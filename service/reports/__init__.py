"""What workers report: taken in once, read back as curves, logs and streams."""
