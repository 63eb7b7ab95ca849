"""Fetch web pages."""
