"""A package, so that its fixtures end with its last test: until then, Playwright occupies the thread's event loop."""
