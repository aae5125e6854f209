"""The handwritten asynchronous client. The synchronous client in `_sync` is generated from it."""
