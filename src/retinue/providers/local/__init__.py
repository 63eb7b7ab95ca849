"""A small model that runs on this machine: a demonstration that needs no key and no network."""
