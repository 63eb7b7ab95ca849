"""What agents can do: one file, one tool or one family."""
