"""`python -m bench.gpu`: whether the engine is right, fast and as large as planned on a GPU, in a few short phases.

It imports only what the worker needs. Each phase runs in a process of its own with a time limit, appends one JSON line
for each case to a file, and skips the cases that the file has, so that an interrupted run is continued.
"""
