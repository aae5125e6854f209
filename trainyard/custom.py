"""The base class and data types of a custom task; docs/tasks.md has an example. Requires torch."""

from worker.data.examples import Examples, Tensors
from worker.tasks.custom import CustomTask

__all__ = ["CustomTask", "Examples", "Tensors"]
