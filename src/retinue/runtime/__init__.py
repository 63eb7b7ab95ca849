"""What happens: verbs, in order."""
