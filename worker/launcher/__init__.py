"""The parts of `worker.launcher.supervisor`: what surrounds torchrun on a node. Nothing here imports torch."""
