"""Records that it ran, with its name and its Slurm job id."""

import os
import sys

handle = os.open("/shared/book", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(handle, f"{sys.argv[1]} {os.environ['SLURM_JOB_ID']}\n".encode())
