"""Secrets of users, stored encrypted and delivered to the ranks of their jobs only."""
