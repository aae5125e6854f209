"""The runs table: the values of jobs, and pages of jobs by a query, in the order of any value."""
