#!/usr/bin/env bash
export OMP_NUM_THREADS=1
torchrun --standalone --nproc_per_node=2 loop.py --out checkpoints "$@"
