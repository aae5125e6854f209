"""The entry point of one rank under torchrun."""
