"""Created projects: who reads, submits and manages, and what a project may use."""
