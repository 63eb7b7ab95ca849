"""Conversations as files, and agents as definitions."""
