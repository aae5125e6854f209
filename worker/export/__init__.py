"""Trained weights in formats that other tools load."""
