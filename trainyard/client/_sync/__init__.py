# Generated from _async/__init__.py by installation/sync_client.py; do not edit.
"""The handwritten synchronous client. The synchronous client in `_sync` is generated from it."""
