"""Guarded file access and sandboxed commands."""
