"""Files of checkpoints, exports and artifacts: listing, safe opening and archives. Their content is never parsed."""
