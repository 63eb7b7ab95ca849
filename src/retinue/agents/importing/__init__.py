"""Import of agent definitions that were written for other programs."""
