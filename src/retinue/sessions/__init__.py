"""Sessions stored as files."""
