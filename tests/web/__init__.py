"""A package, so that its browser is closed after its last test: Playwright occupies the thread's event loop until then."""
