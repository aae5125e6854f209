"""The logs of ranks and launchers: appended by workers and read by users."""
