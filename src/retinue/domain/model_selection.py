"""Model selection: the run's override, else the agent's definition, else the default."""

import re
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from retinue.domain.agent import Agent
from retinue.domain.cli_agent import DEFAULT_MODEL
from retinue.domain.model_turn import Model
from retinue.domain.providers import (
    CLI_AGENTS,
    MAIN_SERVERS,
    MODEL_APIS,
    NO_NAMES,
    PROVIDER_ALIASES,
    PROVIDERS,
    find_provider,
)
from retinue.errors import BadConfig

MODEL_FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(spec.model_pattern, re.IGNORECASE), spec.name)
    for spec in PROVIDERS.values()
    if spec.model_pattern
)
"""Name patterns that identify the provider of a model name without a provider prefix."""

DEMO_MODEL_PREFIXES = tuple(f"{spec.name}:" for spec in PROVIDERS.values() if spec.is_demo)
"""Prefixes of models that are only for demonstrations."""
DEMO_MODEL_LABEL = "a demonstration model"
"""Label of the small local model wherever it is shown."""

NO_MODEL_MESSAGE = (
    f"No model configured. Set {' or '.join(MODEL_APIS[name].key_variable for name in MAIN_SERVERS)}, "
    "or choose a model with --model, RETINUE_MODEL or `model` in the configuration "
    f"(as {', '.join(f'{name}:NAME' for name in MAIN_SERVERS)} or scripted:FILE). Without a key, "
    "`retinue models pull` downloads a small demonstration model."
)


def select_model(
    agent: Agent,
    override: str | None,
    default: str | None,
    configured_names: Collection[str] = NO_NAMES,
    default_fallbacks: Sequence[str] = (),
) -> Model:
    """Return the model of a run, with its fallbacks.

    Args:
        agent: The definition of the run's agent.
        override: The model that the run names.
        default: The default model.
        configured_names: Names of the providers that the user configured.
        default_fallbacks: The fallbacks of agents that name none.
    """
    if not agent.is_supported:
        raise BadConfig(f"agent {agent.name} is external, and external agents are not supported yet")
    provider, name = _provider_and_name(agent, override, default, configured_names)
    if provider in CLI_AGENTS and agent.exits:
        raise BadConfig(
            f"agent {agent.name} has exit tools ({', '.join(agent.exits)}), which {provider} cannot call: "
            "remove `exits` from the definition, or use another provider"
        )
    model = Model(
        provider=provider,
        name=name,
        temperature=agent.temperature,
        max_tokens=agent.max_tokens,
        thinking=None if agent.thinking is None else str(agent.thinking),
        settings=dict(agent.driver_settings),
    )
    if not (agent.fallback_models or default_fallbacks) or provider in CLI_AGENTS:
        return model
    return replace(model, fallbacks=_select_fallbacks(agent, model, configured_names, default_fallbacks))


def parse_model_name(model: str, default: str | None, configured_names: Collection[str] = NO_NAMES) -> Model:
    """Return a model given as `provider:name`, or as a name from which its provider is guessed."""
    provider, name = split_model_name(model, configured_names)
    fallback = split_model_name(default, configured_names)[0] if default else None
    return Model(provider=provider or _guess_provider(name, fallback), name=name)


def is_demo_model(model: str | None) -> bool:
    return (model or "").startswith(DEMO_MODEL_PREFIXES)


def model_label(model: str) -> str:
    """Return a model's name for display."""
    return f"{model}, {DEMO_MODEL_LABEL}" if model.startswith("local:") else model


def split_model_name(model: str, configured_names: Collection[str] = NO_NAMES) -> tuple[str | None, str]:
    """Split `provider:name`.

    A name that contains a colon itself must be written with its provider: `openai:llama3:8b`.
    """
    prefix, colon, name = model.partition(":")
    if not colon:
        return None, model
    provider = find_provider(prefix, configured_names)
    if provider is None:
        raise BadConfig(
            f"unknown provider in the model {model!r}: write PROVIDER:NAME, where PROVIDER is one of "
            f"{', '.join(dict.fromkeys((*PROVIDER_ALIASES, *configured_names)))}, or configure [providers.{prefix}]"
        )
    if not name.strip():
        raise BadConfig(f"the model {model!r} has no name after its provider")
    return provider, name


def _provider_and_name(
    agent: Agent, override: str | None, default: str | None, names: Collection[str]
) -> tuple[str, str]:
    fallback = split_model_name(default, names)[0] if default else None
    if override:
        provider, name = split_model_name(override, names)
        return provider or _guess_provider(name, fallback), name
    agent_provider = _agent_provider(agent, names)
    if agent_provider is not None and agent_provider in CLI_AGENTS:
        return agent_provider, _name_without_provider(agent.model) or DEFAULT_MODEL
    if agent.model:
        if agent_provider is not None and find_provider(agent.model.partition(":")[0], names) is None:
            return agent_provider, agent.model
        provider, name = split_model_name(agent.model, names)
        return provider or _guess_provider(name, fallback), name
    if default is None:
        raise BadConfig(NO_MODEL_MESSAGE)
    if agent_provider is not None and agent_provider != fallback:
        raise BadConfig(
            f"agent {agent.name} uses the provider {agent.driver} but names no model, and the default model is {default}: "
            f"add `model` to the definition"
        )
    provider, name = split_model_name(default, names)
    return provider or _guess_provider(name, None), name


def _select_fallbacks(
    agent: Agent, first: Model, names: Collection[str], default_fallbacks: Sequence[str]
) -> tuple[Model, ...]:
    """Return the models to ask if the first one fails, each once.

    The settings of the definition's own server are only for models of the first one's provider.
    """
    is_own = agent.fallback_models is not None
    own_provider = _agent_provider(agent, names) if is_own else None
    fallbacks: dict[str, Model] = {}
    for text in agent.fallback_models if agent.fallback_models is not None else default_fallbacks:
        try:
            provider, name = _split_fallback(text, own_provider, first.provider, names)
        except BadConfig as error:
            raise BadConfig(f"fallback_models: {error}") from error
        if provider in CLI_AGENTS:
            raise BadConfig(f"fallback_models: {text} is a CLI agent, which cannot take over a conversation")
        settings = first.settings if provider == first.provider else {}
        model = replace(first, provider=provider, name=name, settings=settings)
        if model.full_name != first.full_name:
            fallbacks.setdefault(model.full_name, model)
    return tuple(fallbacks.values())


def _split_fallback(
    text: str, own_provider: str | None, first_provider: str, names: Collection[str]
) -> tuple[str, str]:
    is_named = find_provider(text.partition(":")[0], names) is not None
    if own_provider is not None and own_provider not in CLI_AGENTS and not is_named:
        return own_provider, text
    provider, name = split_model_name(text, names)
    return provider or _guess_provider(name, first_provider), name


def _name_without_provider(model: str | None) -> str:
    """Return the model name without a provider prefix, as a CLI agent expects it."""
    head, _, name = (model or "").partition(":")
    return name if head in PROVIDER_ALIASES else model or ""


def _agent_provider(agent: Agent, names: Collection[str]) -> str | None:
    if agent.driver is None:
        return None
    provider = find_provider(agent.driver, names)
    if provider is None:
        raise BadConfig(
            f"agent {agent.name} has an unknown `driver`: {agent.driver!r}. "
            f"Use one of {', '.join(dict.fromkeys((*PROVIDER_ALIASES, *names)))}"
        )
    return provider


def _guess_provider(name: str, fallback: str | None) -> str:
    for pattern, provider in MODEL_FAMILIES:
        if pattern.match(name):
            return provider
    if fallback is None:
        raise BadConfig(
            f"the provider of the model {name!r} is unknown: "
            f"write {' or '.join(f'{provider}:{name}' for provider in MAIN_SERVERS)}"
        )
    return fallback
