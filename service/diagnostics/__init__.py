"""Checks of an installation, as `trainyard doctor` shows them."""
