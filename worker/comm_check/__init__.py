"""The task `comm_check`: correctness and speed of collective communication."""
