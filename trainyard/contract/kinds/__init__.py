"""The kinds of training: one record for each task, strategy and precision, with the facts by which code decides."""
