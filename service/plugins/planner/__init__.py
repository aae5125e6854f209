"""The needs of a run before it is submitted: parameters, memory per GPU, disk, and whether it fits."""
