"""What drives runs."""
