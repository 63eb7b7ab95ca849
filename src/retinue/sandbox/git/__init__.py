"""Git repositories and worktrees."""
