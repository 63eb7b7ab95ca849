"""Paths closed to every agent, or changed only with approval, whatever a scope says."""

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
"""Never opened for an agent, whatever its scope says; Retinue's own home is added at run time."""

GUARDED_PATHS: Globs = (
    "**/.git", "**/.github/workflows/**", "**/.gitlab-ci.yml", "**/.circleci/**", "**/.husky/**", "**/.githooks/**",
    "**/.vscode/**", "**/.idea/**", "**/.zed/**", "**/.devcontainer/**", "**/.envrc", "**/.mcp.json",
    "**/.claude/**", "**/.cursor/**", "**/.codex/**", "**/.gemini/**", "**/.retinue/**",
)  # fmt: skip
"""Readable, but each change needs its own approval, because other programs act on these files."""
