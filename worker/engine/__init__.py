"""The training loop, the step, parallel strategies and the state of a run. Independent of HTTP and the scheduler."""
