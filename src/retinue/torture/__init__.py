"""Crash test: kill a tree of agents in many ways and check that no guarantee was broken."""
