"""Sessions stored as files, and agent definitions."""
