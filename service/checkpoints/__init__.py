"""Checkpoints and exports of jobs: listed, handed out, deleted; never opened for what is in them."""
