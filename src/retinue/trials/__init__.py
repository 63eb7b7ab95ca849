"""Demonstrations and crash tests."""
