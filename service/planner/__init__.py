"""What a run will need before it is submitted: parameters, memory a GPU, disk, and whether it fits."""
