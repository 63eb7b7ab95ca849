"""Configuration becomes ports: which adapter stands behind each need."""

import importlib
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.app.sandbox_loader import Commands
from retinue.config.load import Config, Provider
from retinue.domain.agent import Agent
from retinue.domain.cli_agent import PROGRAMS
from retinue.domain.io_results import Fetched
from retinue.domain.model_selection import model_for
from retinue.domain.model_turn import Model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status
from retinue.errors import BadConfig, NobodyHere, RetinueError, Usage
from retinue.interfaces import Driver, Ports, Tool
from retinue.runtime import run_control
from retinue.runtime.agent_loop import broken, work
from retinue.runtime.approvals import Later
from retinue.runtime.disk_full import freed
from retinue.runtime.interrupts import heed
from retinue.runtime.recovery import release
from retinue.runtime.run_creation import claim
from retinue.runtime.turn_timer import Interruptions
from retinue.runtime.watchers import Watching
from retinue.tools.registry import built_in
from retinue.worker.worker import Orders

Question = Callable[[str, Sequence[str]], Awaitable[str]]

MOST_CHOSEN = 256
"""So many agents' models are remembered: each run asks for its own more than once."""


def orders(
    ports: Ports,
    crashed: Callable[[str, BaseException], None],
    alive: Callable[[str], bool],
    changed: Callable[[], bool] = lambda: True,
) -> Orders:
    interruptions = Interruptions()

    async def ended(run_id: str) -> bool:
        run = await ports.ledger.look(lambda tx: tx.run(run_id))
        return run is None or run.status.final or _parked(run, ports, alive)

    async def failed(run_id: str, error: BaseException) -> None:
        if not isinstance(error, RetinueError):
            crashed(run_id, error)
        await broken(run_id, error, ports)

    async def due() -> None:
        with suppress(RetinueError):
            await run_control.due(ports)

    async def woken() -> list[str]:
        await run_control.expire(ports, alive=alive)
        await run_control.due(ports)
        return await run_control.woken(ports)

    async def released() -> None:
        await release(ports, alive)
        await freed(ports, alive)

    return Orders(
        claim=lambda run_id: claim(run_id, ports),
        work=lambda run_id, born: work(run_id, ports, interruptions, born=born),
        broken=failed,
        ended=ended,
        unwanted=lambda: run_control.wanted_gone(ports),
        interrupted=lambda: heed(ports, interruptions),
        woken=woken,
        release=released,
        watched=Watching(ports).look,
        due=due,
        changed=changed,
    )


def _parked(run: Run, ports: Ports, alive: Callable[[str], bool]) -> bool:
    """It waits, and it is ours, or a daemon's with nobody at it, or whoever worked it is gone: nothing elsewhere will
    end it."""
    ours = run.owner in (ports.owner, ports.worker())
    return run.status is Status.WAITING and (ours or not alive(run.owner))


def drivers_of(config: Config, commands: Commands, redact: Redactor) -> dict[str, Callable[[Model], Driver]]:
    """Each driver is imported when a model of it is first asked."""

    def openai(model: Model) -> Driver:
        from retinue.providers.openai_chat import OpenAIChat

        return OpenAIChat(*_address(model, config.providers.openai, config.env))

    def anthropic(model: Model) -> Driver:
        from retinue.providers.anthropic import Anthropic

        return Anthropic(*_address(model, config.providers.anthropic, config.env))

    def scripted(model: Model) -> Driver:
        from retinue.providers.scripted import Scripted

        return Scripted(Path(model.name))

    def local(model: Model) -> Driver:
        from retinue.providers.local.model_process import ModelProcess, command
        from retinue.providers.local.provider import Local
        from retinue.providers.local.weights import known, place

        weights = known(model.name)
        process = ModelProcess(command(place(config.models, weights), weights.sha256))
        return Local(weights.name, process, log=config.env.get("RETINUE_LOCAL_LOG", ""))

    def program(model: Model) -> Driver:
        from retinue.providers.cli.credentials import access
        from retinue.providers.cli.provider import SPEECHES, Cli

        reached = access(SPEECHES[model.driver], model.settings, *_known(config))
        return Cli(model, commands.hosting, reached, redact)

    return {
        "openai": openai,
        "anthropic": anthropic,
        "scripted": scripted,
        "local": local,
        **dict.fromkeys(PROGRAMS, program),
    }


def _known(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that a program may be given keys from, and where whose models are served if not at their makers'."""
    ours, theirs = config.providers.openai, config.providers.anthropic
    keys = {"OPENAI_API_KEY": ours.key, "ANTHROPIC_API_KEY": theirs.key, "CODEX_API_KEY": ours.key}
    known = {**{name: str(key) for name, key in keys.items() if key}, **config.env}
    both = {"openai": ours, "anthropic": theirs}
    return known, {maker: each.base_url for maker, each in both.items() if not each.is_default}


def _address(model: Model, provider: Provider, env: Mapping[str, str]) -> tuple[str, str]:
    """A definition that names its own server never gets the key meant for another."""
    own = own_server(model)
    return (own, own_key(model, env)) if own else (provider.base_url, provider.key)


def own_server(model: Model) -> str:
    """The base URL a definition names for itself, as an openai-compatible server needs."""
    return str(model.settings.get("base_url") or model.settings.get("baseUrl") or "")


def own_key(model: Model, env: Mapping[str, str]) -> str:
    """The key for that server: what the variable holds that the definition names."""
    variable = str(model.settings.get("api_key_env") or model.settings.get("apiKeyEnv") or "")
    return env.get(variable, "")


def models(config: Config, redact: Redactor) -> Callable[[Agent, str | None], Model]:
    """Which model an agent uses. The key of a server of its own is a secret before anything is written."""
    latest: dict[tuple[int, str | None, str | None], tuple[Agent, Model]] = {}

    def model(agent: Agent, override: str | None) -> Model:
        wish = (id(agent), override, config.default_model())
        known, found = latest.get(wish, (None, None))
        if found is None or known is not agent:
            found = model_for(agent, override, wish[2])
            redact.learn(own_key(found, config.env))
            if len(latest) >= MOST_CHOSEN:
                latest.clear()
            latest[wish] = (agent, found)
        return found

    return model


def tool_table(config: Config, given: Sequence[Tool]) -> dict[str, Tool]:
    """Built in, then the configuration's, then the program's own; no name may be taken twice. What reaches the web is
    there only where the configuration says how far."""
    table = built_in()
    if config.web_hosts:
        from retinue.tools.web.web_fetch import web_fetch

        table["web_fetch"] = web_fetch(_fetching(config.web_hosts))
    for tool in (*(_imported(where) for where in config.tools), *given):
        name = tool.spec.name
        if name in table:
            raise Usage(f"there is a tool {name!r} already: give yours another name")
        table[name] = tool
    return table


def _fetching(sites: Sequence[str]) -> Callable[[str], Awaitable[Fetched]]:
    async def fetch(url: str) -> Fetched:
        from retinue.tools.web.fetcher import Web

        return await Web(sites).fetch(url)

    return fetch


def _imported(where: str) -> Tool:
    module, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfig(f'tools: {where!r} cannot be loaded ({error}): write it as "module:name"') from error
    if not isinstance(found, Tool):
        raise BadConfig(f"tools: {where!r} is no tool: decorate it with @retinue.tool")
    return found


def check_model(model: Model, config: Config) -> None:
    """A missing key or script is told before a session is made."""
    if model.driver == "scripted":
        if not Path(model.name).is_file():
            raise BadConfig(
                f"the script {model.name} is not a file: scripted:FILE plays replies from a JSON file"
            )
        return
    if model.driver == "local":
        _check_weights(model.name, config.models)
        return
    if model.driver in PROGRAMS:
        kind = PROGRAMS[model.driver]
        if shutil.which(kind.binary, path=config.env.get("PATH", os.defpath)) is None:
            raise BadConfig(
                f"{kind.binary} is not installed here, or not on the PATH: install it with `{kind.install}`"
            )
        return
    if model.driver not in ("openai", "anthropic"):
        raise BadConfig(f"the driver {model.driver} of {model.full} is not available here")
    provider = config.providers.openai if model.driver == "openai" else config.providers.anthropic
    if not provider.key and provider.is_default and not own_server(model):
        raise BadConfig(f"{model.full} needs a key: set {model.driver.upper()}_API_KEY")


def _check_weights(name: str, home: Path) -> None:
    from retinue.providers.local.weights import EXTRA, known, there, usable

    weights = known(name)
    if not there(home, weights):
        raise BadConfig(f"the weights of local:{name} are not here: `retinue models pull {name}` brings them")
    if not usable(home, weights):
        raise BadConfig(EXTRA)


async def later(question: str, _options: Sequence[str]) -> str:
    """Of a process that stays: an agent's question waits until a person answers it from elsewhere."""
    raise Later(f"nobody is here to answer {question!r} now")


async def nobody(question: str, _options: Sequence[str]) -> str:
    raise NobodyHere(f"nobody is here to answer {question!r}: go on without it, or say what you need to know")
