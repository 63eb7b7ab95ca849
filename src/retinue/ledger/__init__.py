"""Runs and their events, in tables."""
