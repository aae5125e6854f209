"""Parallel strategies: single, dp, ddp, and the sharded ones made of `fully_shard`."""
