"""Public fakes, and a scripted model server on loopback."""
