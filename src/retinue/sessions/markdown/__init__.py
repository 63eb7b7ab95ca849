"""Parse and write session.md."""
