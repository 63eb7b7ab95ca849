"""Agent definitions: sources, validation, skills, project trust, and import from other programs."""
