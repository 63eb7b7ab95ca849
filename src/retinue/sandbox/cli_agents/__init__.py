"""cli_agents."""
