"""Torture: a tree of agents is killed in every way there is, and what is left is held against what was promised."""
