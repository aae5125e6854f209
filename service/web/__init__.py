"""The dashboard: pages with embedded answers of the API, and scripts that render them and use the public API."""
