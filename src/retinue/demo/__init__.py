"""Demonstrations with a scripted model and with a small local model."""
