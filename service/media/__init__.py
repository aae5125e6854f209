"""Media that programs log: storage and queries."""
