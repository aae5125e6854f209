"""Uploaded code: archives stored by digest on the shared filesystem; the service never opens them."""
