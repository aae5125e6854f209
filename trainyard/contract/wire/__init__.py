"""Models of the data that crosses a process boundary: request bodies, resources, worker reports, and the files that
both sides read."""
