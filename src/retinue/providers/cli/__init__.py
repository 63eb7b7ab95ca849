"""Providers that run CLI agents: claude, codex and pi."""
