"""The table of model providers: one row each, from which names, defaults and checks are derived.

A row holds only facts. `retinue.providers.registry` imports the provider's code when one of its models is used.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field


class ModelApi(Struct, frozen=True, kw_only=True):
    """A provider's own server; the user can set its URL and key in the environment or under `providers`."""

    base_url: str
    env_prefix: str
    """Prefix of its environment variables."""

    @property
    def key_variable(self) -> str:
        return f"{self.env_prefix}API_KEY"

    @property
    def url_variable(self) -> str:
        return f"{self.env_prefix}BASE_URL"


class CliAgentKind(Struct, frozen=True, kw_only=True):
    """A program that can be an agent's provider."""

    binary: str
    install: str
    reserved_flags: frozenset[str]
    """Flags and words that definitions must not pass.

    Retinue passes some of them itself; the others change what the program does or prints.
    """
    reserved_prefixes: tuple[str, ...] = ()
    """Beginnings of more such arguments."""
    list_flags: frozenset[str] = frozenset()
    """Flags that take several values."""

    def reserved_flags_in(self, args: Sequence[str]) -> list[str]:
        """Return the reserved flags among the arguments, sorted."""
        return sorted({flag for arg in args if (flag := self._reserved_flag(arg))})

    def _reserved_flag(self, arg: str) -> str:
        name = arg.partition("=")[0] if arg.startswith("-") else arg
        if name in self.reserved_flags or name.startswith(self.reserved_prefixes or ("\0",)):
            return name
        # A flag of one letter may have its value attached to it, as in -oFILE.
        short = name[:2]
        return short if short != "--" and name.startswith("-") and short in self.reserved_flags else ""

    def unattached_word_in(self, args: Sequence[str]) -> str:
        """Return the first argument that is neither a flag nor a flag's value: the program takes it as a message."""
        flag = ""
        for arg in args:
            if arg.startswith("-"):
                flag = arg
            elif not flag:
                return arg
            elif flag not in self.list_flags:
                flag = ""
        return ""


class ProviderSpec(Struct, frozen=True, kw_only=True):
    """A row of the table. The functions it names have the types in `retinue.providers.interface`."""

    name: str
    """The prefix of its models, as in `openai:gpt-5-mini`, and the `driver` of a definition."""
    create: str
    """`module:function` that creates the provider (CreateProvider)."""
    check: str = ""
    """`module:function` that checks whether a model can be used (CheckModel).

    Without it, a model needs its server's key, or its program on the PATH.
    """
    list_models: str = ""
    """`module:function` that returns rows of `retinue models list` (ListModels); else the default model is listed."""
    aliases: tuple[str, ...] = ()
    """Other names of the provider, in models and in definitions."""
    foreign_names: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name in other programs' definitions, in lower case → name or alias of the provider."""
    model_pattern: str = ""
    """Pattern that identifies this provider's models when their name has no provider prefix."""
    default_model_name: str = ""
    """Model used if none is configured and this one is available."""
    is_demo: bool = False
    """The provider's models are only for demonstrations."""
    api: ModelApi | None = None
    cli_agent: CliAgentKind | None = None

    @property
    def default_model(self) -> str:
        """The default model as `provider:name`; empty if there is none."""
        return f"{self.name}:{self.default_model_name}" if self.default_model_name else ""


_ROWS = (
    ProviderSpec(
        name="openai",
        create="retinue.providers.model_server:create_openai_provider",
        aliases=("openai-compatible",),
        foreign_names={
            "chatgpt": "openai",
            "openai": "openai",
            "ollama": "openai-compatible",
            "openrouter": "openai-compatible",
            "deepseek": "openai-compatible",
            "groq": "openai-compatible",
            "mistral": "openai-compatible",
            "llama-cpp": "openai-compatible",
            "lmstudio": "openai-compatible",
            "vllm": "openai-compatible",
            "xai": "openai-compatible",
        },
        model_pattern=r"gpt|chatgpt|o\d",
        default_model_name="gpt-5-mini",
        api=ModelApi(base_url="https://api.openai.com/v1", env_prefix="OPENAI_"),
    ),
    ProviderSpec(
        name="anthropic",
        create="retinue.providers.model_server:create_anthropic_provider",
        foreign_names={"claude": "anthropic", "anthropic": "anthropic"},
        model_pattern="claude",
        default_model_name="claude-sonnet-4-5",
        api=ModelApi(base_url="https://api.anthropic.com", env_prefix="ANTHROPIC_"),
    ),
    ProviderSpec(
        name="scripted",
        create="retinue.providers.scripted:create_provider",
        check="retinue.providers.scripted:check_script",
        is_demo=True,
    ),
    ProviderSpec(
        name="local",
        create="retinue.providers.local.provider:create_provider",
        check="retinue.providers.local.weights:check_model",
        list_models="retinue.providers.local.weights:list_models",
        default_model_name="smollm2",
        is_demo=True,
    ),
    ProviderSpec(
        name="claude-cli",
        create="retinue.providers.cli.claude:create_provider",
        cli_agent=CliAgentKind(
            binary="claude",
            install="npm install -g @anthropic-ai/claude-code",
            reserved_flags=frozenset(
                [
                    "-p",
                    "--print",
                    "--verbose",
                    "--output-format",
                    "--input-format",
                    "--include-partial-messages",
                    "--session-id",
                    "--resume",
                    "-r",
                    "--continue",
                    "-c",
                    "--fork-session",
                    "--no-session-persistence",
                    "--resume-session-at",
                    "--from-pr",
                    "--teleport",
                    "--cloud",
                    "--environment",
                    "--desktop",
                    "--remote-control",
                    "--bg",
                    "--background",
                    "--tmux",
                    "--worktree",
                    "-w",
                    "--init-only",
                    "--rewind-files",
                    "--sdk-url",
                    "--json-schema",
                    "--brief",
                    "--bare",
                    "--safe-mode",
                    "--help",
                    "-h",
                    "--version",
                    "-v",
                    "--",
                    "-",
                ]
            ),
            reserved_prefixes=("--dangerously-", "--allow-dangerously-"),
            list_flags=frozenset(
                [
                    "--add-dir",
                    "--allowedTools",
                    "--allowed-tools",
                    "--betas",
                    "--disallowedTools",
                    "--disallowed-tools",
                    "--file",
                    "--mcp-config",
                    "--tools",
                ]
            ),
        ),
    ),
    ProviderSpec(
        name="codex-cli",
        create="retinue.providers.cli.codex:create_provider",
        cli_agent=CliAgentKind(
            binary="codex",
            install="npm install -g @openai/codex",
            reserved_flags=frozenset(
                [
                    "exec",
                    "e",
                    "resume",
                    "fork",
                    "review",
                    "help",
                    "--json",
                    "--experimental-json",
                    "--last",
                    "--ephemeral",
                    "-C",
                    "--cd",
                    "--worktree",
                    "-o",
                    "--output-last-message",
                    "--output-schema",
                    "-i",
                    "--image",
                    "--ignore-user-config",
                    "--yolo",
                    "--help",
                    "-h",
                    "--version",
                    "-V",
                    "--",
                    "-",
                ]
            ),
            reserved_prefixes=("--dangerously-",),
        ),
    ),
    ProviderSpec(
        name="pi-cli",
        create="retinue.providers.cli.pi:create_provider",
        cli_agent=CliAgentKind(
            binary="pi",
            install="npm install -g @mariozechner/pi-coding-agent",
            reserved_flags=frozenset(
                [
                    "--mode",
                    "--session",
                    "--session-dir",
                    "--no-session",
                    "--continue",
                    "-c",
                    "--resume",
                    "-r",
                    "--fork",
                    "--print",
                    "-p",
                    "--export",
                    "--list-models",
                    "--no-context-files",
                    "-nc",
                    "--help",
                    "-h",
                    "--version",
                    "-v",
                    "--",
                    "-",
                ]
            ),
            reserved_prefixes=("@",),
        ),
    ),
)

PROVIDERS: Mapping[str, ProviderSpec] = {row.name: row for row in _ROWS}
"""Every provider by name, in the order of lists and of preference for the default model."""

MODEL_APIS: Mapping[str, ModelApi] = {row.name: row.api for row in _ROWS if row.api is not None}
CLI_AGENTS: Mapping[str, CliAgentKind] = {
    row.name: row.cli_agent for row in _ROWS if row.cli_agent is not None
}
PROVIDER_ALIASES: Mapping[str, str] = {alias: row.name for row in _ROWS for alias in (row.name, *row.aliases)}
"""Provider name or alias → provider name."""
