"""A runtime for sub-agents."""
