"""The parts of `worker.launch`: what surrounds torchrun on a node. Nothing here imports torch."""
