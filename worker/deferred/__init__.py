"""Models that are built without memory for their parameters, so that each rank fills only its shards."""
