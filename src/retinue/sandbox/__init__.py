"""Where files are opened and commands run."""
