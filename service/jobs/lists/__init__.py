"""Lists of jobs: which match, in which order, a page at a time."""
