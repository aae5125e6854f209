"""Live streams: one reader for each process, and a bounded queue for each subscriber."""
