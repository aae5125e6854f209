"""What the lines of text data hold, format by format: one description, for the check of uploads and for workers."""
