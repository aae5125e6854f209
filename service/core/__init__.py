"""The base of the service: settings, errors, clock, ids, logging, failpoints. Imports no other service package."""
