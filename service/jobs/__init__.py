"""Jobs: desired state, actual status, transitions, submission, quotas and lists."""
