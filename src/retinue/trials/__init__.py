"""What we claim: bench and demo."""
