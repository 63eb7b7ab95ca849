"""Programs as agents: claude, codex and pi."""
