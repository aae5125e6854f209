"""How a clone is installed. It needs Python alone, because it runs before anything is installed."""
