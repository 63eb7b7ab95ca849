"""Sandboxed CLI agents."""
