"""When a checkpoint is written, how, and which one is good to start from."""
