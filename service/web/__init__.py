"""The dashboard: pages drawn here, and scripts that use the public API as any other client does."""
