"""Paths that no agent may open, whatever its scope."""

from retinue.domain.rules import Globs

ALWAYS_CLOSED_PATHS: Globs = (
    "**/.git/hooks/**", "**/.git/config", "**/.git/config.worktree", "**/.git/commondir", "**/.git/modules/**/config",
    "**/.git/modules/**/hooks/**", "**/.gitconfig", "**/.config/git/**",
    "**/.vscode/tasks.json", "**/.vscode/launch.json", "**/.idea/runConfigurations/**", "**/.zed/tasks.json",
    "**/.bashrc", "**/.bash_profile", "**/.bash_login", "**/.bash_logout", "**/.profile", "**/.zshrc", "**/.zshenv",
    "**/.zprofile", "**/.zlogin", "**/.config/fish/**", "**/.config/autostart/**", "**/.config/systemd/**",
    "**/.ssh/**", "**/.gnupg/**", "**/.aws/**", "**/.netrc", "**/.git-credentials", "**/.pgpass",
    "**/.docker/config.json", "**/.kube/**", "**/.npmrc", "**/.pypirc",
    "**/.config/gcloud/**", "**/.config/gh/**", "/proc/**", "/sys/**", "/dev/**", "/etc/shadow", "/etc/gshadow",
)  # fmt: skip
"""Paths that no agent may open; Retinue's own home is added at run time."""
