"""A definition's settings for its CLI agent: working folder, extra arguments and wrapper."""

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from retinue.domain.cli_agent import DEFAULT_MODEL, InvalidSetting, parse_cli_settings
from retinue.domain.model_turn import Model
from retinue.errors import BadConfig
from retinue.providers.cli.protocol import CliProtocol


class LaunchOptions(Struct, frozen=True, kw_only=True):
    extra_args: tuple[str, ...] = ()
    workdir: str = ""
    wrapper: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])


def build_launch_options(model: Model, protocol: CliProtocol) -> LaunchOptions:
    try:
        parsed = parse_cli_settings(model.provider, model.settings)
    except InvalidSetting as error:
        raise BadConfig(f"chat.config.{error.key} {error}") from error
    return LaunchOptions(
        extra_args=(
            *_model_args(model, protocol, parsed.extra_args),
            *_thinking_args(model, protocol),
            *parsed.extra_args,
        ),
        workdir=parsed.workdir,
        wrapper=parsed.wrapper,
        env=parsed.env,
    )


def _model_args(model: Model, protocol: CliProtocol, extra_args: Sequence[str]) -> tuple[str, ...]:
    flags = protocol.model_flags
    is_given = any(arg.partition("=")[0] in flags for arg in extra_args)
    return () if model.name == DEFAULT_MODEL or is_given else (flags[0], model.name)


def _thinking_args(model: Model, protocol: CliProtocol) -> tuple[str, ...]:
    if model.thinking is None:
        return ()
    level = protocol.thinking_levels.get(model.thinking, model.thinking)
    return tuple(template.format(level) for template in protocol.thinking_args)
