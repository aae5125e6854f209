"""Data sets, tokenizers, and the examples of each step."""
