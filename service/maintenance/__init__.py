"""Background maintenance: deletion, disk usage and retention."""
