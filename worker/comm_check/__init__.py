"""The check of communication between ranks: what is done is data, and each operation is right before it is timed."""
