"""Taking in points: decoded fast, queued in bounded memory, written by one thread in groups."""
