"""The options that every command takes, and the command and group that carry them."""

from typing import Any

import click


def remember(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """`--home` and `--json` count wherever they stand; the last one given wins."""
    if value:
        ctx.meta[f"retinue.{param.name}"] = value
    return value


def everywhere() -> list[click.Parameter]:
    """The options that every command takes, in front of its name and after it."""
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=remember,
            help="Print one JSON value on standard output, and nothing else there.",
        ),
        click.Option(
            ["--home"],
            metavar="DIR",
            is_eager=True,
            expose_value=False,
            callback=remember,
            help="Where sessions and runs are kept, instead of $RETINUE_HOME.",
        ),
    ]


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += everywhere()


class Group(click.Group):
    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += everywhere()
