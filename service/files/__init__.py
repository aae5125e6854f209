"""Data files that users upload: checked line by line, and stored once for each content on the shared filesystem."""
