"""Places that are closed to every agent, or changed only with a person's yes, whatever a scope says."""

from retinue.domain.rules import Globs

ALWAYS_CLOSED: Globs = (
    "**/.git/hooks/**", "**/.git/config", "**/.git/config.worktree", "**/.git/commondir", "**/.git/modules/**/config",
    "**/.git/modules/**/hooks/**", "**/.gitconfig", "**/.config/git/**",
    "**/.vscode/tasks.json", "**/.vscode/launch.json", "**/.idea/runConfigurations/**", "**/.zed/tasks.json",
    "**/.bashrc", "**/.bash_profile", "**/.bash_login", "**/.bash_logout", "**/.profile", "**/.zshrc", "**/.zshenv",
    "**/.zprofile", "**/.zlogin", "**/.config/fish/**", "**/.config/autostart/**", "**/.config/systemd/**",
    "**/.ssh/**", "**/.gnupg/**", "**/.aws/**", "**/.netrc", "**/.git-credentials", "**/.pgpass",
    "**/.docker/config.json", "**/.kube/**", "**/.npmrc", "**/.pypirc",
    "**/.config/gcloud/**", "**/.config/gh/**", "/proc/**", "/sys/**", "/dev/**", "/etc/shadow", "/etc/gshadow",
)  # fmt: skip
"""Never opened for an agent, whatever its scope says; Retinue's own home is added at run time."""

GUARDED: Globs = (
    "**/.git", "**/.github/workflows/**", "**/.gitlab-ci.yml", "**/.circleci/**", "**/.husky/**", "**/.githooks/**",
    "**/.vscode/**", "**/.idea/**", "**/.zed/**", "**/.devcontainer/**", "**/.envrc", "**/.mcp.json",
    "**/.claude/**", "**/.cursor/**", "**/.codex/**", "**/.gemini/**", "**/.retinue/**",
)  # fmt: skip
"""Readable, and never changed without a person's yes to just that: other programs obey what stands there."""
