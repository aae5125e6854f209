"""The pages of the dashboard: routes, and the values that their templates show."""
