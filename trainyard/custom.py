"""What a task of your own is made of; docs/tasks.md shows one. Only on machines that have torch."""

from worker.data.examples import Examples, Tensors
from worker.tasks.custom import CustomTask

__all__ = ["CustomTask", "Examples", "Tensors"]
