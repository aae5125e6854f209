"""The launcher: the code around torchrun on a node, run by `worker.launcher.supervisor`. Nothing here imports torch."""
