"""The routes of the pages, one module for each section of the dashboard."""
