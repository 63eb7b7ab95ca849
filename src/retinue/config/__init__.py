"""The configuration: its settings, and how they are loaded."""
