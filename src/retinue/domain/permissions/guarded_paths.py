"""Paths whose every change needs approval, because other programs execute or obey the files.

Each row names the program and where its behaviour is described. Ordinary source code, which runs only when
somebody builds or starts the project, is not listed.
"""

from functools import lru_cache
from typing import NamedTuple

from retinue.domain.rules import Globs


class GuardedPath(NamedTuple):
    """One pattern, the program that obeys the files that it matches, and a source for that."""

    pattern: str
    program: str
    source: str
    only_at_root: bool = False
    """The program reads the file at the root of a repository only, so never in `node_modules`."""


_GIT = "git"
_BASH, _ZSH, _CSH, _KSH = "bash", "zsh", "csh and tcsh", "ksh"
_VIM, _EMACS, _VS_CODE, _JETBRAINS = "Vim and Neovim", "Emacs", "Visual Studio Code", "JetBrains IDEs"
_PYTHON, _RUBY, _YARN, _GRADLE = "Python", "Ruby", "Yarn", "Gradle"
_CLAUDE, _COPILOT, _AIDER = "Claude Code", "GitHub Copilot", "aider"
_AGENTS = "coding agents"

GUARDED_PATH_TABLE: tuple[GuardedPath, ...] = (
    # Git, and programs that git starts.
    GuardedPath("**/.git/**", _GIT, "gitrepository-layout(5): configuration, hooks and a .git file that chooses the repository"),
    GuardedPath("**/.gitmodules", _GIT, "gitmodules(5): the addresses that submodules are fetched from"),
    GuardedPath("**/.lfsconfig", "Git LFS", "git-lfs-config(5): server addresses and transfers"),
    GuardedPath("**/.githooks/**", _GIT, "githooks(5): the usual folder of core.hooksPath"),
    GuardedPath("**/.husky/**", "husky", "typicode.github.io/husky: scripts of git hooks"),
    GuardedPath("**/.pre-commit-config.yaml", "pre-commit", "pre-commit.com: commands of git hooks"),
    GuardedPath("**/lefthook.yml", "Lefthook", "lefthook.dev: commands of git hooks"),
    GuardedPath("**/.lefthook.yml", "Lefthook", "lefthook.dev: commands of git hooks"),
    GuardedPath("**/.overcommit.yml", "Overcommit", "github.com/sds/overcommit: commands of git hooks"),
    # Shells, terminals and the desktop session.
    GuardedPath("**/.bash_aliases", _BASH, "Debian's .bashrc sources it"),
    GuardedPath("**/.zlogout", _ZSH, "zsh(1), STARTUP/SHUTDOWN FILES"),
    GuardedPath("**/.cshrc", _CSH, "tcsh(1), Startup and shutdown"),
    GuardedPath("**/.tcshrc", _CSH, "tcsh(1), Startup and shutdown"),
    GuardedPath("**/.login", _CSH, "tcsh(1), Startup and shutdown"),
    GuardedPath("**/.kshrc", _KSH, "ksh(1), Invocation"),
    GuardedPath("**/.mkshrc", _KSH, "mksh(1)"),
    GuardedPath("**/.config/nushell/**", "Nushell", "nushell.sh/book/configuration"),
    GuardedPath("**/.config/powershell/**", "PowerShell", "about_Profiles"),
    GuardedPath("**/.inputrc", "GNU Readline", "readline(3): keys that type commands"),
    GuardedPath("**/.pam_environment", "PAM", "pam_env(8): variables of the login session"),
    GuardedPath("**/.config/environment.d/**", "systemd", "environment.d(5)"),
    GuardedPath("**/.xinitrc", "X", "xinit(1)"),
    GuardedPath("**/.xprofile", "display managers", "Xsession(5)"),
    GuardedPath("**/.xsession", "X", "Xsession(5)"),
    GuardedPath("**/.xsessionrc", "X", "Xsession(5)"),
    GuardedPath("**/.local/bin/**", "shells", "systemd file-hierarchy(7): this folder is in PATH"),
    GuardedPath("**/.tmux.conf", "tmux", "tmux(1): run-shell"),
    GuardedPath("**/.config/tmux/**", "tmux", "tmux(1): run-shell"),
    GuardedPath("**/.screenrc", "GNU Screen", "screen(1): exec"),
    # Environments of a folder, entered with cd or by opening it.
    GuardedPath("**/.envrc", "direnv", "direnv(1)"),
    GuardedPath("**/.autoenv.zsh", "zsh-autoenv", "github.com/Tarrasch/zsh-autoenv"),
    GuardedPath("**/mise.toml", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/mise.local.toml", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.mise.toml", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.mise.local.toml", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.mise/**", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.config/mise/**", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.config/mise.toml", "mise", "mise.jdx.dev/configuration: env, hooks and tasks"),
    GuardedPath("**/.tool-versions", "asdf and mise", "asdf-vm.com: path: chooses the program"),
    GuardedPath("**/.asdfrc", "asdf", "asdf-vm.com: hooks"),
    GuardedPath("**/.devcontainer/**", "Dev Containers", "containers.dev: initializeCommand"),
    GuardedPath("**/.devcontainer.json", "Dev Containers", "containers.dev: initializeCommand"),
    GuardedPath("**/.gitpod.yml", "Gitpod", "gitpod.io/docs: tasks"),
    GuardedPath("**/.codesandbox/**", "CodeSandbox", "codesandbox.io/docs: tasks.json"),
    GuardedPath("**/.replit", "Replit", "docs.replit.com: run"),
    # Editors.
    GuardedPath("**/.vscode/**", _VS_CODE, "code.visualstudio.com/docs: settings name programs to run"),
    GuardedPath("**/*.code-workspace", _VS_CODE, "code.visualstudio.com/docs: settings and tasks"),
    GuardedPath("**/.vs/**", "Visual Studio", "learn.microsoft.com/visualstudio: tasks.vs.json"),
    GuardedPath("**/.idea/**", _JETBRAINS, "jetbrains.com/help: run configurations, watchers, tools"),
    GuardedPath("**/.fleet/**", _JETBRAINS, "jetbrains.com/help/fleet: run.json"),
    GuardedPath("**/.zed/**", "Zed", "zed.dev/docs: tasks and language servers"),
    GuardedPath("**/.helix/**", "Helix", "docs.helix-editor.com: language servers"),
    GuardedPath("**/.externalToolBuilders/**", "Eclipse", "help.eclipse.org: external tool builders"),
    GuardedPath("**/*.sublime-project", "Sublime Text", "sublimetext.com/docs/projects: build_systems"),
    GuardedPath("**/.vimrc", _VIM, "Vim :help vimrc, 'exrc'"),
    GuardedPath("**/_vimrc", _VIM, "Vim :help vimrc"),
    GuardedPath("**/.gvimrc", _VIM, "Vim :help gvimrc"),
    GuardedPath("**/.exrc", _VIM, "Vim :help 'exrc'"),
    GuardedPath("**/.lvimrc", _VIM, "vim-localvimrc"),
    GuardedPath("**/.nvimrc", _VIM, "Neovim :help 'exrc'"),
    GuardedPath("**/.nvim.lua", _VIM, "Neovim :help 'exrc'"),
    GuardedPath("**/.vim/**", _VIM, "Vim :help 'runtimepath'"),
    GuardedPath("**/.config/nvim/**", _VIM, "Neovim :help config"),
    GuardedPath("**/.ycm_extra_conf.py", "YouCompleteMe", "github.com/ycm-core: executed when a file is opened"),
    GuardedPath("**/.emacs", _EMACS, "GNU Emacs manual, Init File"),
    GuardedPath("**/.emacs.d/**", _EMACS, "GNU Emacs manual, Init File"),
    GuardedPath("**/.config/emacs/**", _EMACS, "GNU Emacs manual, Init File"),
    GuardedPath("**/.dir-locals.el", _EMACS, "GNU Emacs manual, Directory Variables: eval"),
    GuardedPath("**/.dir-locals-2.el", _EMACS, "GNU Emacs manual, Directory Variables: eval"),
    GuardedPath("**/.nanorc", "nano", "nanorc(5): formatter and linter commands"),
    # Package managers and build tools: configuration that runs or redirects them.
    GuardedPath("**/.yarnrc", _YARN, "classic.yarnpkg.com/docs/yarnrc: yarn-path"),
    GuardedPath("**/.yarnrc.yml", _YARN, "yarnpkg.com/configuration/yarnrc: yarnPath, plugins"),
    GuardedPath("**/.yarn/releases/**", _YARN, "yarnpkg.com/configuration/yarnrc: yarnPath"),
    GuardedPath("**/.yarn/plugins/**", _YARN, "yarnpkg.com/configuration/yarnrc: plugins"),
    GuardedPath("**/.pnpmfile.cjs", "pnpm", "pnpm.io/pnpmfile"),
    GuardedPath("**/.pnpmfile.mjs", "pnpm", "pnpm.io/pnpmfile"),
    GuardedPath("**/pnpmfile.js", "pnpm", "pnpm.io/pnpmfile"),
    GuardedPath("**/bunfig.toml", "Bun", "bun.sh/docs/runtime/bunfig: preload, registry"),
    GuardedPath("**/.bunfig.toml", "Bun", "bun.sh/docs/runtime/bunfig: preload, registry"),
    GuardedPath("**/pip.conf", "pip", "pip.pypa.io, Configuration: index-url"),
    GuardedPath("**/pip.ini", "pip", "pip.pypa.io, Configuration: index-url"),
    GuardedPath("**/.config/pip/**", "pip", "pip.pypa.io, Configuration: index-url"),
    GuardedPath("**/.pip/**", "pip", "pip.pypa.io, Configuration: index-url"),
    GuardedPath("**/uv.toml", "uv", "docs.astral.sh/uv/reference/settings: index"),
    GuardedPath("**/.pydistutils.cfg", _PYTHON, "distutils configuration files"),
    GuardedPath("**/.condarc", "conda", "docs.conda.io, .condarc: channels"),
    GuardedPath("**/.cargo/config.toml", "Cargo", "doc.rust-lang.org/cargo: runner, rustc-wrapper"),
    GuardedPath("**/.cargo/config", "Cargo", "doc.rust-lang.org/cargo: runner, rustc-wrapper"),
    GuardedPath("**/rust-toolchain.toml", "rustup", "rust-lang.github.io/rustup: path"),
    GuardedPath("**/rust-toolchain", "rustup", "rust-lang.github.io/rustup: path"),
    GuardedPath("**/init.gradle", _GRADLE, "docs.gradle.org, Initialization Scripts"),
    GuardedPath("**/init.gradle.kts", _GRADLE, "docs.gradle.org, Initialization Scripts"),
    GuardedPath("**/.gradle/init.d/**", _GRADLE, "docs.gradle.org, Initialization Scripts"),
    GuardedPath("**/gradle-wrapper.properties", _GRADLE, "docs.gradle.org, Gradle Wrapper: distributionUrl"),
    GuardedPath("**/.mvn/**", "Maven", "maven.apache.org/configure: jvm.config, extensions.xml"),
    GuardedPath("**/.bazelrc", "Bazel", "bazel.build/run/bazelrc: workspace_status_command"),
    GuardedPath("**/.bundle/**", "Bundler", "bundle-config(1)"),
    GuardedPath("**/.gemrc", "RubyGems", "guides.rubygems.org: sources"),
    GuardedPath("**/.pylintrc", "Pylint", "pylint.readthedocs.io: init-hook"),
    GuardedPath("**/pylintrc", "Pylint", "pylint.readthedocs.io: init-hook"),
    # Languages, debuggers and clients that read a start-up file.
    GuardedPath("**/site-packages/*.pth", _PYTHON, "docs.python.org/library/site: lines that begin with import"),
    GuardedPath("**/dist-packages/*.pth", _PYTHON, "docs.python.org/library/site: lines that begin with import"),
    GuardedPath("**/sitecustomize.py", _PYTHON, "docs.python.org/library/site: sitecustomize"),
    GuardedPath("**/usercustomize.py", _PYTHON, "docs.python.org/library/site: usercustomize"),
    GuardedPath("**/.pythonrc", _PYTHON, "PYTHONSTARTUP, by convention"),
    GuardedPath("**/.pythonrc.py", _PYTHON, "PYTHONSTARTUP, by convention"),
    GuardedPath("**/.pdbrc", _PYTHON, "docs.python.org/library/pdb"),
    GuardedPath("**/.ipython/**", "IPython", "ipython.readthedocs.io: profiles"),
    GuardedPath("**/.jupyter/**", "Jupyter", "docs.jupyter.org: jupyter_server_config.py"),
    GuardedPath("**/.irbrc", _RUBY, "irb(1)"),
    GuardedPath("**/.pryrc", _RUBY, "github.com/pry/pry"),
    GuardedPath("**/.Rprofile", "R", "R ?Startup"),
    GuardedPath("**/.Renviron", "R", "R ?Startup"),
    GuardedPath("**/.octaverc", "GNU Octave", "GNU Octave manual, Startup Files"),
    GuardedPath("**/.ghci", "GHCi", "downloads.haskell.org, The .ghci files"),
    GuardedPath("**/.gdbinit", "gdb", "gdb(1)"),
    GuardedPath("**/.lldbinit", "lldb", "lldb(1)"),
    GuardedPath("**/.psqlrc", "psql", "psql(1): \\!"),
    GuardedPath("**/.sqliterc", "sqlite3", "sqlite3(1): .shell"),
    GuardedPath("**/.curlrc", "curl", "curl(1): -o, --proxy"),
    GuardedPath("**/.wgetrc", "Wget", "wget(1)"),
    GuardedPath("**/.htaccess", "Apache", "httpd.apache.org/docs, .htaccess files"),
    GuardedPath("**/.user.ini", "PHP", "php.net, .user.ini files: auto_prepend_file"),
    # What a server runs after a push.
    GuardedPath("**/.github/workflows/**", "GitHub Actions", "docs.github.com/actions"),
    GuardedPath("**/.github/actions/**", "GitHub Actions", "docs.github.com/actions"),
    GuardedPath("**/.gitea/workflows/**", "Gitea Actions", "docs.gitea.com/usage/actions"),
    GuardedPath("**/.forgejo/workflows/**", "Forgejo Actions", "forgejo.org/docs"),
    GuardedPath("**/.gitlab-ci.yml", "GitLab CI", "docs.gitlab.com/ci"),
    GuardedPath("**/.gitlab-ci/**", "GitLab CI", "docs.gitlab.com/ci: include"),
    GuardedPath("**/.gitlab/ci/**", "GitLab CI", "docs.gitlab.com/ci: include"),
    GuardedPath("**/.circleci/**", "CircleCI", "circleci.com/docs"),
    GuardedPath("**/.buildkite/**", "Buildkite", "buildkite.com/docs"),
    GuardedPath("**/.semaphore/**", "Semaphore", "docs.semaphoreci.com"),
    GuardedPath("**/.teamcity/**", "TeamCity", "jetbrains.com/help/teamcity"),
    GuardedPath("**/.tekton/**", "Tekton", "pipelinesascode.com"),
    GuardedPath("**/.woodpecker/**", "Woodpecker", "woodpecker-ci.org/docs"),
    GuardedPath("**/.woodpecker.yml", "Woodpecker", "woodpecker-ci.org/docs", only_at_root=True),
    GuardedPath("**/.woodpecker.yaml", "Woodpecker", "woodpecker-ci.org/docs", only_at_root=True),
    GuardedPath("**/.builds/**", "builds.sr.ht", "man.sr.ht/builds.sr.ht"),
    GuardedPath("**/.build.yml", "builds.sr.ht", "man.sr.ht/builds.sr.ht", only_at_root=True),
    GuardedPath("**/.azure-pipelines/**", "Azure Pipelines", "learn.microsoft.com/azure/devops/pipelines"),
    GuardedPath("**/azure-pipelines.yml", "Azure Pipelines", "learn.microsoft.com/azure/devops/pipelines", only_at_root=True),
    GuardedPath("**/azure-pipelines.yaml", "Azure Pipelines", "learn.microsoft.com/azure/devops/pipelines", only_at_root=True),
    GuardedPath("**/Jenkinsfile", "Jenkins", "jenkins.io/doc/book/pipeline/jenkinsfile", only_at_root=True),
    GuardedPath("**/.travis.yml", "Travis CI", "docs.travis-ci.com", only_at_root=True),
    GuardedPath("**/appveyor.yml", "AppVeyor", "appveyor.com/docs", only_at_root=True),
    GuardedPath("**/.appveyor.yml", "AppVeyor", "appveyor.com/docs", only_at_root=True),
    GuardedPath("**/.drone.yml", "Drone", "docs.drone.io", only_at_root=True),
    GuardedPath("**/.cirrus.yml", "Cirrus CI", "cirrus-ci.org/guide", only_at_root=True),
    GuardedPath("**/bitbucket-pipelines.yml", "Bitbucket Pipelines", "support.atlassian.com/bitbucket-cloud", only_at_root=True),
    GuardedPath("**/cloudbuild.yaml", "Google Cloud Build", "cloud.google.com/build/docs", only_at_root=True),
    GuardedPath("**/buildspec.yml", "AWS CodeBuild", "docs.aws.amazon.com/codebuild", only_at_root=True),
    GuardedPath("**/codefresh.yml", "Codefresh", "codefresh.io/docs", only_at_root=True),
    GuardedPath("**/netlify.toml", "Netlify", "docs.netlify.com: build.command", only_at_root=True),
    GuardedPath("**/vercel.json", "Vercel", "vercel.com/docs: buildCommand", only_at_root=True),
    GuardedPath("**/.readthedocs.yaml", "Read the Docs", "docs.readthedocs.com: build.commands", only_at_root=True),
    GuardedPath("**/.readthedocs.yml", "Read the Docs", "docs.readthedocs.com: build.commands", only_at_root=True),
    # Instructions, tools and permissions of other agents.
    GuardedPath("**/AGENTS.md", _AGENTS, "agents.md"),
    GuardedPath("**/AGENTS.override.md", "Codex", "developers.openai.com/codex"),
    GuardedPath("**/AGENT.md", _AGENTS, "ampcode.com/AGENT.md"),
    GuardedPath("**/.agents/**", _AGENTS, "agentskills.io: skills"),
    GuardedPath("**/CLAUDE.md", _CLAUDE, "code.claude.com/docs: memory"),
    GuardedPath("**/CLAUDE.local.md", _CLAUDE, "code.claude.com/docs: memory"),
    GuardedPath("**/.claude/**", _CLAUDE, "code.claude.com/docs: settings, hooks, agents, commands"),
    GuardedPath("**/.mcp.json", _AGENTS, "code.claude.com/docs: MCP servers of a project"),
    GuardedPath("**/GEMINI.md", "Gemini CLI", "geminicli.com/docs"),
    GuardedPath("**/.gemini/**", "Gemini CLI", "geminicli.com/docs"),
    GuardedPath("**/QWEN.md", "Qwen Code", "qwenlm.github.io/qwen-code-docs"),
    GuardedPath("**/.qwen/**", "Qwen Code", "qwenlm.github.io/qwen-code-docs"),
    GuardedPath("**/.codex/**", "Codex", "developers.openai.com/codex"),
    GuardedPath("**/.cursor/**", "Cursor", "cursor.com/docs: rules, MCP servers, hooks"),
    GuardedPath("**/.cursorrules", "Cursor", "cursor.com/docs: rules"),
    GuardedPath("**/.windsurf/**", "Windsurf", "docs.windsurf.com: rules, workflows"),
    GuardedPath("**/.windsurfrules", "Windsurf", "docs.windsurf.com: rules"),
    GuardedPath("**/.clinerules/**", "Cline", "docs.cline.bot: rules"),
    GuardedPath("**/.roo/**", "Roo Code", "docs.roocode.com: rules"),
    GuardedPath("**/.roorules", "Roo Code", "docs.roocode.com: rules"),
    GuardedPath("**/.roomodes", "Roo Code", "docs.roocode.com: modes"),
    GuardedPath("**/.kilocode/**", "Kilo Code", "kilocode.ai/docs: rules"),
    GuardedPath("**/.continue/**", "Continue", "docs.continue.dev"),
    GuardedPath("**/.continuerules", "Continue", "docs.continue.dev"),
    GuardedPath("**/.aider.conf.yml", _AIDER, "aider.chat/docs: test-cmd, lint-cmd"),
    GuardedPath("**/.aider.conf.yaml", _AIDER, "aider.chat/docs: test-cmd, lint-cmd"),
    GuardedPath("**/.aider.model.settings.yml", _AIDER, "aider.chat/docs"),
    GuardedPath("**/.aider.model.metadata.json", _AIDER, "aider.chat/docs"),
    GuardedPath("**/.github/copilot-instructions.md", _COPILOT, "docs.github.com/copilot"),
    GuardedPath("**/.github/instructions/**", _COPILOT, "docs.github.com/copilot"),
    GuardedPath("**/.github/prompts/**", _COPILOT, "docs.github.com/copilot"),
    GuardedPath("**/.github/chatmodes/**", _COPILOT, "docs.github.com/copilot"),
    GuardedPath("**/.github/agents/**", _COPILOT, "docs.github.com/copilot"),
    GuardedPath("**/.junie/**", _JETBRAINS, "jetbrains.com/help/junie: guidelines"),
    GuardedPath("**/.aiassistant/**", _JETBRAINS, "jetbrains.com/help/ai-assistant: rules"),
    GuardedPath("**/.augment/**", "Augment", "docs.augmentcode.com: rules"),
    GuardedPath("**/.augment-guidelines", "Augment", "docs.augmentcode.com: rules"),
    GuardedPath("**/.goosehints", "Goose", "block.github.io/goose"),
    GuardedPath("**/.opencode/**", "opencode", "opencode.ai/docs"),
    GuardedPath("**/opencode.json", "opencode", "opencode.ai/docs"),
    GuardedPath("**/opencode.jsonc", "opencode", "opencode.ai/docs"),
    GuardedPath("**/CRUSH.md", "Crush", "github.com/charmbracelet/crush"),
    GuardedPath("**/.crush.json", "Crush", "github.com/charmbracelet/crush"),
    GuardedPath("**/crush.json", "Crush", "github.com/charmbracelet/crush"),
    GuardedPath("**/.amazonq/**", "Amazon Q", "docs.aws.amazon.com/amazonq: rules"),
    GuardedPath("**/.kiro/**", "Kiro", "kiro.dev/docs: steering, hooks"),
    GuardedPath("**/.trae/**", "Trae", "docs.trae.ai: rules"),
    GuardedPath("**/.factory/**", "Factory", "docs.factory.ai"),
    GuardedPath("**/.openhands/**", "OpenHands", "docs.openhands.dev: microagents"),
    GuardedPath("**/.pi/**", "pi", "github.com/badlogic/pi-mono"),
    GuardedPath("**/.rules", "Zed", "zed.dev/docs/ai/rules"),
    GuardedPath("**/WARP.md", "Warp", "docs.warp.dev: rules"),
    GuardedPath("**/.retinue/**", "Retinue", "a project's agents and skills"),
)  # fmt: skip

GUARDED_PATHS: Globs = tuple(each.pattern for each in GUARDED_PATH_TABLE)
"""Paths that are readable, but need approval for every change."""

_PROGRAMS = {each.pattern: each.program for each in GUARDED_PATH_TABLE}
_ONLY_AT_ROOT = frozenset(each.pattern for each in GUARDED_PATH_TABLE if each.only_at_root)


def guarding_program(pattern: str) -> str:
    """Return the program that obeys the files of a pattern."""
    return _PROGRAMS.get(pattern, "other programs")


@lru_cache(maxsize=16)
def patterns_in_dependencies(patterns: Globs) -> Globs:
    """Return the patterns that also guard files in the folders of dependencies."""
    return tuple(each for each in patterns if each not in _ONLY_AT_ROOT)
