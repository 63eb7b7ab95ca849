"""A definition's settings for its CLI agent: working folder, extra arguments and wrapper."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from retinue.domain.cli_agent import DEFAULT_MODEL, InvalidSetting, parse_cli_settings
from retinue.domain.model_turn import Model
from retinue.errors import BadConfig

_MODEL_FLAGS = {"codex-cli": ("--model", "-m")}
_THINKING_ARGS = {"codex-cli": ("-c", "model_reasoning_effort={}"), "pi-cli": ("--thinking", "{}")}
"""Arguments that set the thinking level; claude has none."""


class LaunchOptions(Struct, frozen=True, kw_only=True):
    extra_args: tuple[str, ...] = ()
    workdir: str = ""
    wrapper: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def build_launch_options(model: Model) -> LaunchOptions:
    try:
        parsed = parse_cli_settings(model.provider, model.settings)
    except InvalidSetting as error:
        raise BadConfig(f"chat.config.{error.key} {error}") from error
    return LaunchOptions(
        extra_args=(*_model_args(model, parsed.extra_args), *_thinking_args(model), *parsed.extra_args),
        workdir=parsed.workdir,
        wrapper=parsed.wrapper,
        env=parsed.env,
    )


def _model_args(model: Model, extra_args: Sequence[str]) -> tuple[str, ...]:
    flags = _MODEL_FLAGS.get(model.provider, ("--model",))
    is_given = any(arg.partition("=")[0] in flags for arg in extra_args)
    return () if model.name == DEFAULT_MODEL or is_given else (flags[0], model.name)


def _thinking_args(model: Model) -> tuple[str, ...]:
    """Return the arguments for the thinking level; codex has none for "off", so minimal is used."""
    if model.thinking is None or model.provider not in _THINKING_ARGS:
        return ()
    level = "minimal" if model.provider == "codex-cli" and model.thinking == "off" else model.thinking
    return tuple(template.format(level) for template in _THINKING_ARGS[model.provider])
