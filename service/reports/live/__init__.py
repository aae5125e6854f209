"""Live streams: one reader a process for all of them, a bounded queue for each."""
