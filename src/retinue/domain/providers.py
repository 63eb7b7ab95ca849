"""The table of model providers: one row each, from which names, defaults and checks are derived.

A row holds only facts. `retinue.providers.registry` imports the provider's code when one of its models is used.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

OPENAI, OPENAI_CHAT, OPENAI_RESPONSES, ANTHROPIC = "openai", "openai-chat", "openai-responses", "anthropic"
API_KINDS = (OPENAI_RESPONSES, OPENAI_CHAT, ANTHROPIC)
"""The HTTP APIs of model servers, as the user names them."""


class ModelApi(Struct, frozen=True, kw_only=True):
    """A provider's own server; the user can set its URL and key in the environment or under `providers`."""

    base_url: str
    """Empty if every customer has a server of their own."""
    env_prefix: str
    """Prefix of its environment variables."""
    kind: str = OPENAI_CHAT
    """The API that it is asked over; `openai` begins with the one that the address suggests."""
    needs_key: bool = True
    key_header: str = ""
    """Header of the key, if it is not the usual one."""
    other_key_variables: tuple[str, ...] = ()
    """Other variables that people set for it."""
    thinking_field: str = ""
    """Field that requests thinking, if it is not `reasoning_effort`: `thinking` or `reasoning`."""
    schema_disables_tools: bool = False
    """A schema constrains every reply of the server from its first word, so that the model can call no tool."""

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
    """The prefix of its models, as in `openai:gpt-5.6-terra`, and the `driver` of a definition."""
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
    other_default_model_names: tuple[str, ...] = ()
    """Models used instead, in this order, if the server is known not to offer the first one."""
    is_demo: bool = False
    """The provider's models are only for demonstrations."""
    api: ModelApi | None = None
    cli_agent: CliAgentKind | None = None

    @property
    def default_model(self) -> str:
        """The default model as `provider:name`; empty if there is none."""
        return f"{self.name}:{self.default_model_name}" if self.default_model_name else ""

    def offered_default_model(self, offered_names: Collection[str]) -> str:
        """Return the first default model that a server offers; the first one if it offers none of them."""
        names = (self.default_model_name, *self.other_default_model_names)
        return f"{self.name}:{next((name for name in names if name in offered_names), names[0])}"


MODEL_SERVER = "retinue.providers.model_server:create_provider"
"""Creates the provider of any model server."""


def _server(
    name: str,
    base_url: str,
    *,
    foreign_names: Sequence[str] = (),
    default_models: Sequence[str] = (),
    **options: Any,
) -> ProviderSpec:
    """Return the row of a model server that needs only a key, or none."""
    env_prefix = options.pop("env_prefix", f"{name.upper()}_")
    return ProviderSpec(
        name=name,
        create=MODEL_SERVER,
        foreign_names=dict.fromkeys((name, *foreign_names), name),
        default_model_name=default_models[0] if default_models else "",
        other_default_model_names=tuple(default_models[1:]),
        api=ModelApi(base_url=base_url, env_prefix=env_prefix, **options),
    )


DEFAULTS_CHECKED_ON = "2026-11-20"
"""Day on which the default models below were compared with what the vendors offer."""

_SERVERS = (
    _server(
        "openrouter",
        "https://openrouter.ai/api/v1",
        thinking_field="reasoning",
        default_models=("anthropic/claude-sonnet-5.5", "openai/gpt-5.6-terra"),
    ),
    _server(
        "gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        foreign_names=("google",),
        other_key_variables=("GOOGLE_API_KEY",),
        default_models=("gemini-3.8-flash", "gemini-flash-latest"),
    ),
    _server(
        "mistral",
        "https://api.mistral.ai/v1",
        default_models=("mistral-medium-latest", "mistral-large-latest"),
    ),
    _server(
        "deepseek",
        "https://api.deepseek.com/v1",
        thinking_field="thinking",
        default_models=("deepseek-v4-pro", "deepseek-v4-flash"),
    ),
    _server(
        "groq", "https://api.groq.com/openai/v1", default_models=("openai/gpt-oss-120b", "openai/gpt-oss-20b")
    ),
    _server("xai", "https://api.x.ai/v1", default_models=("grok-4.7", "grok-4.6", "grok-4.5")),
    _server(
        "together",
        "https://api.together.xyz/v1",
        default_models=("zai-org/GLM-5.3", "moonshotai/Kimi-K3.1-Pro", "openai/gpt-oss-120b"),
    ),
    _server("azure", "", kind=OPENAI, env_prefix="AZURE_OPENAI_", key_header="api-key"),
    _server("ollama", "http://127.0.0.1:11434/v1", needs_key=False, schema_disables_tools=True),
    _server("lmstudio", "http://127.0.0.1:1234/v1", needs_key=False, schema_disables_tools=True),
    _server("vllm", "http://127.0.0.1:8000/v1", needs_key=False, schema_disables_tools=True),
    _server(
        "llamacpp",
        "http://127.0.0.1:8080/v1",
        needs_key=False,
        schema_disables_tools=True,
        foreign_names=("llama-cpp",),
    ),
)

_ROWS = (
    ProviderSpec(
        name="openai",
        create=MODEL_SERVER,
        aliases=("openai-compatible",),
        foreign_names={
            "chatgpt": "openai",
            "openai": "openai",
        },
        model_pattern=r"gpt|chatgpt|o\d",
        default_model_name="gpt-5.6-terra",
        other_default_model_names=("gpt-5.6-luna", "gpt-5.5", "gpt-5.4"),
        api=ModelApi(base_url="https://api.openai.com/v1", env_prefix="OPENAI_", kind=OPENAI),
    ),
    ProviderSpec(
        name="anthropic",
        create=MODEL_SERVER,
        foreign_names={"claude": "anthropic", "anthropic": "anthropic"},
        model_pattern="claude",
        default_model_name="claude-sonnet-5-5",
        other_default_model_names=("claude-sonnet-5", "claude-haiku-5-5", "claude-opus-5-5"),
        api=ModelApi(base_url="https://api.anthropic.com", env_prefix="ANTHROPIC_", kind=ANTHROPIC),
    ),
    *_SERVERS,
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
MAIN_SERVERS = ("openai", "anthropic")
"""The servers that are named where a short list is enough."""
NO_NAMES: frozenset[str] = frozenset()


def find_provider(name: str, configured_names: Collection[str] = NO_NAMES) -> str | None:
    """Return the provider of a name or alias, or of a name that the user configured."""
    return PROVIDER_ALIASES.get(name) or (name if name in configured_names else None)
