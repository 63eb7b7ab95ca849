"""Delegation tools: start other agents from a conversation."""
