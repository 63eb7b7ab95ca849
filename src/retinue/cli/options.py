"""Global options, and the click command and group classes that carry them."""

from typing import Any

import click


def store_option(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Store a global option in the context, so that it can precede or follow the command; the last value counts."""
    if value:
        ctx.meta[f"retinue.{param.name}"] = value
    return value


def global_options() -> list[click.Parameter]:
    """Return the options that every command takes, before and after its name."""
    return [
        click.Option(
            ["--json"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=store_option,
            help="Print the result as one JSON value on standard output.",
        ),
        click.Option(
            ["--home"],
            metavar="DIR",
            is_eager=True,
            expose_value=False,
            callback=store_option,
            help="Folder of sessions and runs (default: $RETINUE_HOME).",
        ),
    ]


class Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options()


class Group(click.Group):
    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += global_options()
