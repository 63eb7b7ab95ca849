"""Model selection: the run's override, else the agent's definition, else the default."""

import re

from retinue.domain.agent import Agent
from retinue.domain.cli_agent import DEFAULT_MODEL
from retinue.domain.model_turn import Model
from retinue.domain.providers import CLI_AGENTS, MODEL_APIS, PROVIDER_ALIASES, PROVIDERS
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
    f"No model configured. Set {' or '.join(api.key_variable for api in MODEL_APIS.values())}, "
    "or choose a model with --model, RETINUE_MODEL or `model` in the configuration "
    f"(as {', '.join(f'{name}:NAME' for name in MODEL_APIS)} or scripted:FILE). Without a key, "
    "`retinue models pull` downloads a small demonstration model."
)


def select_model(agent: Agent, override: str | None, default: str | None) -> Model:
    if not agent.is_supported:
        raise BadConfig(f"agent {agent.name} is external, and external agents are not supported yet")
    provider, name = _provider_and_name(agent, override, default)
    if provider in CLI_AGENTS and agent.exits:
        raise BadConfig(
            f"agent {agent.name} has exit tools ({', '.join(agent.exits)}), which {provider} cannot call: "
            "remove `exits` from the definition, or use another provider"
        )
    return Model(
        provider=provider,
        name=name,
        temperature=agent.temperature,
        max_tokens=agent.max_tokens,
        thinking=None if agent.thinking is None else str(agent.thinking),
        settings=dict(agent.driver_settings),
    )


def is_demo_model(model: str | None) -> bool:
    return (model or "").startswith(DEMO_MODEL_PREFIXES)


def model_label(model: str) -> str:
    """Return a model's name for display."""
    return f"{model}, {DEMO_MODEL_LABEL}" if model.startswith("local:") else model


def split_model_name(model: str) -> tuple[str | None, str]:
    """Split `provider:name`.

    A name that contains a colon itself must be written with its provider: `openai:llama3:8b`.
    """
    prefix, colon, name = model.partition(":")
    if not colon:
        return None, model
    if prefix not in PROVIDER_ALIASES:
        raise BadConfig(
            f"unknown provider in the model {model!r}: write PROVIDER:NAME, where PROVIDER is one of "
            f"{', '.join(PROVIDER_ALIASES)}"
        )
    if not name.strip():
        raise BadConfig(f"the model {model!r} has no name after its provider")
    return PROVIDER_ALIASES[prefix], name


def _provider_and_name(agent: Agent, override: str | None, default: str | None) -> tuple[str, str]:
    fallback = split_model_name(default)[0] if default else None
    if override:
        provider, name = split_model_name(override)
        return provider or _guess_provider(name, fallback), name
    agent_provider = _agent_provider(agent)
    if agent_provider is not None and agent_provider in CLI_AGENTS:
        return agent_provider, _name_without_provider(agent.model) or DEFAULT_MODEL
    if agent.model:
        if agent_provider is not None and agent.model.partition(":")[0] not in PROVIDER_ALIASES:
            return agent_provider, agent.model
        provider, name = split_model_name(agent.model)
        return provider or _guess_provider(name, fallback), name
    if default is None:
        raise BadConfig(NO_MODEL_MESSAGE)
    if agent_provider is not None and agent_provider != fallback:
        raise BadConfig(
            f"agent {agent.name} uses the provider {agent.driver} but names no model, and the default model is {default}: "
            f"add `model` to the definition"
        )
    provider, name = split_model_name(default)
    return provider or _guess_provider(name, None), name


def _name_without_provider(model: str | None) -> str:
    """Return the model name without a provider prefix, as a CLI agent expects it."""
    head, _, name = (model or "").partition(":")
    return name if head in PROVIDER_ALIASES else model or ""


def _agent_provider(agent: Agent) -> str | None:
    if agent.driver is None:
        return None
    if agent.driver not in PROVIDER_ALIASES:
        raise BadConfig(
            f"agent {agent.name} has an unknown `driver`: {agent.driver!r}. Use one of {', '.join(PROVIDER_ALIASES)}"
        )
    return PROVIDER_ALIASES[agent.driver]


def _guess_provider(name: str, fallback: str | None) -> str:
    for pattern, provider in MODEL_FAMILIES:
        if pattern.match(name):
            return provider
    if fallback is None:
        raise BadConfig(
            f"the provider of the model {name!r} is unknown: "
            f"write {' or '.join(f'{provider}:{name}' for provider in MODEL_APIS)}"
        )
    return fallback
