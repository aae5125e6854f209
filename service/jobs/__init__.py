"""Jobs: what was asked, what is so, and the moves between."""
