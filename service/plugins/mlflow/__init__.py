"""The read side of MLflow's REST API: jobs as runs, sweeps as experiments."""
