"""Which model an agent uses: the run's override, else its definition, else the default."""

import re

from retinue.domain.agent import Agent, Kind
from retinue.domain.cli_agent import DEFAULT, PROGRAMS
from retinue.domain.model_turn import Model
from retinue.errors import BadConfig

DRIVERS: dict[str, str] = {
    "openai": "openai",
    "openai-compatible": "openai",
    "anthropic": "anthropic",
    "scripted": "scripted",
    "local": "local",
    **{name: name for name in PROGRAMS},
}
"""What people write before the colon, and the driver it means."""

FAMILIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"claude", re.IGNORECASE), "anthropic"),
    (re.compile(r"(gpt|chatgpt|o\d)", re.IGNORECASE), "openai"),
)
"""Names that tell their maker, for a model written without a driver."""

PLAYED = ("local:", "scripted:")
"""Models that show how things work, and do little else."""
DEMONSTRATION = "a demonstration model"
"""What people are told of the small one wherever it speaks."""

NO_MODEL = (
    "no model is configured: set OPENAI_API_KEY or ANTHROPIC_API_KEY, or name one with --model, "
    "RETINUE_MODEL or `model` in the configuration (as openai:NAME, anthropic:NAME or scripted:FILE); without a key, "
    "`retinue models pull` brings a small demonstration model"
)


def model_for(agent: Agent, override: str | None, default: str | None) -> Model:
    if agent.type is Kind.EXTERNAL:
        raise BadConfig(
            f"agent {agent.name} is external: it is reached at its own address, which cannot be done yet"
        )
    driver, name = _chosen(agent, override, default)
    if driver in PROGRAMS and agent.exits:
        raise BadConfig(
            f"agent {agent.name} ends its runs by exits ({', '.join(agent.exits)}), and {driver} cannot call them: "
            "take `exits` out of the definition, or use another driver"
        )
    return Model(
        driver=driver,
        name=name,
        temperature=agent.temperature,
        max_tokens=agent.max_tokens,
        thinking=None if agent.thinking is None else str(agent.thinking),
        settings=dict(agent.driver_settings),
    )


def shows_only(model: str | None) -> bool:
    return (model or "").startswith(PLAYED)


def labelled(model: str) -> str:
    """A model's name as people see it."""
    return f"{model}, {DEMONSTRATION}" if model.startswith("local:") else model


def split(model: str) -> tuple[str | None, str]:
    """`driver:name`. A name that has a colon of its own is written behind its driver: `openai:llama3:8b`."""
    prefix, colon, name = model.partition(":")
    if not colon:
        return None, model
    if prefix not in DRIVERS:
        raise BadConfig(
            f"the model {model!r} names no driver that is known: write it as DRIVER:NAME, with one of "
            f"{', '.join(DRIVERS)} before the first colon"
        )
    if not name.strip():
        raise BadConfig(f"the model {model!r} has no name behind its driver")
    return DRIVERS[prefix], name


def _chosen(agent: Agent, override: str | None, default: str | None) -> tuple[str, str]:
    fallback = split(default)[0] if default else None
    if override:
        driver, name = split(override)
        return driver or _guessed(name, fallback), name
    own = _own(agent)
    if own is not None and own in PROGRAMS:
        return own, _plain(agent.model) or DEFAULT
    if agent.model:
        if own is not None and agent.model.partition(":")[0] not in DRIVERS:
            return own, agent.model
        driver, name = split(agent.model)
        return driver or _guessed(name, fallback), name
    if default is None:
        raise BadConfig(NO_MODEL)
    if own is not None and own != fallback:
        raise BadConfig(
            f"agent {agent.name} uses the driver {agent.driver} but names no model, and the default model is {default}: "
            f"add `model` to the definition"
        )
    driver, name = split(default)
    return driver or _guessed(name, None), name


def _plain(model: str | None) -> str:
    """What a program calls a model: it knows no drivers."""
    head, _, name = (model or "").partition(":")
    return name if head in DRIVERS else model or ""


def _own(agent: Agent) -> str | None:
    if agent.driver is None:
        return None
    if agent.driver not in DRIVERS:
        raise BadConfig(
            f"agent {agent.name} uses the driver {agent.driver!r}; there are {', '.join(DRIVERS)}"
        )
    return DRIVERS[agent.driver]


def _guessed(name: str, fallback: str | None) -> str:
    for pattern, driver in FAMILIES:
        if pattern.match(name):
            return driver
    if fallback is None:
        raise BadConfig(
            f"the model {name!r} does not say who serves it: write openai:{name} or anthropic:{name}"
        )
    return fallback
