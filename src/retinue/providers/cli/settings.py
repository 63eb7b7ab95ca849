"""What a definition says about its program: where it works, what more it is told, and by what it is started."""

from collections.abc import Mapping, Sequence
from dataclasses import field

from retinue.domain.cli_agent import DEFAULT, Misread, told
from retinue.domain.model_turn import Model
from retinue.domain.value import value
from retinue.errors import BadConfig

_MODEL = {"codex-cli": ("--model", "-m")}
_THINKING = {"codex-cli": ("-c", "model_reasoning_effort={}"), "pi-cli": ("--thinking", "{}")}
"""How a program is told to think; claude is not."""


@value
class Settings:
    extra: tuple[str, ...] = ()
    workdir: str = ""
    wrapper: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def settings_of(model: Model) -> Settings:
    try:
        said = told(model.driver, model.settings)
    except Misread as wrong:
        raise BadConfig(f"chat.config.{wrong.key} {wrong}") from wrong
    return Settings(
        extra=(*_model(model, said.extra), *_thinking(model), *said.extra),
        workdir=said.workdir,
        wrapper=said.wrapper,
        env=said.env,
    )


def _model(model: Model, extra: Sequence[str]) -> tuple[str, ...]:
    flags = _MODEL.get(model.driver, ("--model",))
    named = any(word.partition("=")[0] in flags for word in extra)
    return () if model.name == DEFAULT or named else (flags[0], model.name)


def _thinking(model: Model) -> tuple[str, ...]:
    """codex has no word for not at all."""
    if model.thinking is None or model.driver not in _THINKING:
        return ()
    level = "minimal" if model.driver == "codex-cli" and model.thinking == "off" else model.thinking
    return tuple(word.format(level) for word in _THINKING[model.driver])
