"""Who takes a turn."""
