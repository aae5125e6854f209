"""Parallel strategies: single, dp, ddp, and the sharded strategies made of `fully_shard`."""
