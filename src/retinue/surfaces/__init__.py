"""Ways in to Retinue. None knows another."""
