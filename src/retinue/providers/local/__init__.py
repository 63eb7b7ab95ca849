"""A small model that runs on this machine, for demonstrations without a key or a network."""
