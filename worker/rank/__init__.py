"""The entry point of a rank under torchrun."""
