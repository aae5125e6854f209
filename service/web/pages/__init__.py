"""The routes of the pages, a module for each section of the dashboard."""
