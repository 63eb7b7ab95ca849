"""Composition root: build providers, tools, models and scheduler callbacks from the configuration."""

import importlib
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from retinue.app.sandbox_loader import SandboxLoader
from retinue.config.load import Config, ProviderConfig
from retinue.domain.agent import Agent
from retinue.domain.cli_agent import CLI_AGENTS
from retinue.domain.io_results import FetchedPage
from retinue.domain.model_selection import select_model
from retinue.domain.model_turn import Model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status
from retinue.errors import BadConfig, RetinueError, UsageError, UserUnavailable
from retinue.interfaces import Provider, RuntimeContext, Tool
from retinue.runtime import run_control
from retinue.runtime.agent_loop import fail_run, run_agent_loop
from retinue.runtime.approvals import AnswerDeferred
from retinue.runtime.disk_full import requeue_disk_waiters
from retinue.runtime.interrupts import apply_requested_interruptions
from retinue.runtime.recovery import requeue_dead_runs
from retinue.runtime.run_creation import claim_run
from retinue.runtime.turn_timer import InterruptRegistry
from retinue.runtime.watchers import WatcherNotifier
from retinue.tools.registry import built_in_tools
from retinue.worker.worker import SchedulerCallbacks

QuestionCallback = Callable[[str, Sequence[str]], Awaitable[str]]

MODEL_CACHE_SIZE = 256
"""Number of agents whose model is cached; each run asks for its model several times."""


def scheduler_callbacks(
    context: RuntimeContext,
    on_crash: Callable[[str, BaseException], None],
    is_alive: Callable[[str], bool],
    has_changes: Callable[[], bool] = lambda: True,
) -> SchedulerCallbacks:
    interruptions = InterruptRegistry()

    async def is_finished(run_id: str) -> bool:
        run = await context.ledger.read(lambda tx: tx.get_run(run_id))
        return run is None or run.status.is_final or _is_suspended_here(run, context, is_alive)

    async def report_failure(run_id: str, error: BaseException) -> None:
        if not isinstance(error, RetinueError):
            on_crash(run_id, error)
        await fail_run(run_id, error, context)

    async def wake_overdue() -> None:
        with suppress(RetinueError):
            await run_control.wake_overdue_runs(context)

    async def runs_to_wake() -> list[str]:
        await run_control.expire_approvals(context, is_alive=is_alive)
        await run_control.wake_overdue_runs(context)
        return await run_control.runs_woken_elsewhere(context)

    async def release_resources() -> None:
        await requeue_dead_runs(context, is_alive)
        await requeue_disk_waiters(context, is_alive)

    return SchedulerCallbacks(
        claim_run=lambda run_id: claim_run(run_id, context),
        execute_run=lambda run_id, born: run_agent_loop(run_id, context, interruptions, created=born),
        fail_run=report_failure,
        has_ended=is_finished,
        find_cancel_requests=lambda: run_control.requested_cancellations(context),
        deliver_interrupts=lambda: apply_requested_interruptions(context, interruptions),
        find_resumable_runs=runs_to_wake,
        release_dead_claims=release_resources,
        notify_watchers=WatcherNotifier(context).notify_watchers,
        wake_overdue_runs=wake_overdue,
        has_changes=has_changes,
    )


def _is_suspended_here(run: Run, context: RuntimeContext, is_alive: Callable[[str], bool]) -> bool:
    """Return whether a waiting run can only be continued from here.

    That is so if it is ours, or an idle daemon's, or its owner is dead: no other process will end it.
    """
    is_ours = run.owner_id in (context.owner_id, context.new_run_owner_id())
    return run.status is Status.WAITING and (is_ours or not is_alive(run.owner_id))


def provider_factories(
    config: Config, sandbox_loader: SandboxLoader, redact: Redactor
) -> dict[str, Callable[[Model], Provider]]:
    """Return a factory for each provider; its module is imported when a model of it is first used."""

    def openai_provider(model: Model) -> Provider:
        from retinue.providers.openai_chat import OpenAIChatProvider

        return OpenAIChatProvider(*_server_and_key(model, config.providers.openai, config.env))

    def anthropic_provider(model: Model) -> Provider:
        from retinue.providers.anthropic import AnthropicProvider

        return AnthropicProvider(*_server_and_key(model, config.providers.anthropic, config.env))

    def scripted_provider(model: Model) -> Provider:
        from retinue.providers.scripted import ScriptedProvider

        return ScriptedProvider(Path(model.name))

    def local_provider(model: Model) -> Provider:
        from retinue.providers.local.model_process import ModelProcess, host_command
        from retinue.providers.local.provider import LocalProvider
        from retinue.providers.local.weights import get_weights, weights_path

        weights = get_weights(model.name)
        process = ModelProcess(host_command(weights_path(config.models_dir, weights), weights.sha256))
        return LocalProvider(weights.name, process, log_path=config.env.get("RETINUE_LOCAL_LOG", ""))

    def cli_agent_provider(model: Model) -> Provider:
        from retinue.providers.cli.credentials import resolve_credentials
        from retinue.providers.cli.provider import PROTOCOLS, CliProvider

        credentials = resolve_credentials(
            PROTOCOLS[model.provider], model.settings, *_provider_credentials(config)
        )
        return CliProvider(model, sandbox_loader.cli_agent_runner, credentials, redact)

    return {
        "openai": openai_provider,
        "anthropic": anthropic_provider,
        "scripted": scripted_provider,
        "local": local_provider,
        **dict.fromkeys(CLI_AGENTS, cli_agent_provider),
    }


def _provider_credentials(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that CLI agents may get keys from, and base URLs that are not the default."""
    openai, anthropic = config.providers.openai, config.providers.anthropic
    keys = {
        "OPENAI_API_KEY": openai.api_key,
        "ANTHROPIC_API_KEY": anthropic.api_key,
        "CODEX_API_KEY": openai.api_key,
    }
    variables = {**{name: str(key) for name, key in keys.items() if key}, **config.env}
    providers = {"openai": openai, "anthropic": anthropic}
    return variables, {
        provider_name: each.base_url for provider_name, each in providers.items() if not each.is_default
    }


def _server_and_key(model: Model, provider: ProviderConfig, env: Mapping[str, str]) -> tuple[str, str]:
    """Return the base URL and key; a definition with its own server never gets the key for another one."""
    custom_server = own_server(model)
    return (custom_server, own_key(model, env)) if custom_server else (provider.base_url, provider.api_key)


def own_server(model: Model) -> str:
    """Return the base URL that a definition sets for an OpenAI-compatible server, or an empty string."""
    return str(model.settings.get("base_url") or model.settings.get("baseUrl") or "")


def own_key(model: Model, env: Mapping[str, str]) -> str:
    """Return the key for that server, from the variable the definition names."""
    variable = str(model.settings.get("api_key_env") or model.settings.get("apiKeyEnv") or "")
    return env.get(variable, "")


def model_selector(config: Config, redact: Redactor) -> Callable[[Agent, str | None], Model]:
    """Return a function that selects an agent's model.

    The key of a definition's own server is registered as a secret before anything can be written.
    """
    cache: dict[tuple[int, str | None, str | None], tuple[Agent, Model]] = {}

    def cached_model(agent: Agent, override: str | None) -> Model:
        cache_key = (id(agent), override, config.default_model())
        cached_agent, found = cache.get(cache_key, (None, None))
        if found is None or cached_agent is not agent:
            found = select_model(agent, override, cache_key[2])
            redact.add_secret(own_key(found, config.env))
            if len(cache) >= MODEL_CACHE_SIZE:
                cache.clear()
            cache[cache_key] = (agent, found)
        return found

    return cached_model


def build_tool_table(config: Config, program_tools: Sequence[Tool]) -> dict[str, Tool]:
    """Return built-in tools, the configuration's and the program's, by name.

    Web tools exist only if the configuration lists allowed hosts.

    Raises:
        Usage: Two tools have the same name.
    """
    table = built_in_tools()
    if config.web_hosts:
        from retinue.tools.web.web_fetch import make_web_fetch

        table["web_fetch"] = make_web_fetch(_web_fetcher(config.web_hosts))
    for tool in (*(_import_tool(reference) for reference in config.tools), *program_tools):
        name = tool.spec.name
        if name in table:
            raise UsageError(f"A tool named {name!r} already exists. Give your tool another name.")
        table[name] = tool
    return table


def _web_fetcher(hosts: Sequence[str]) -> Callable[[str], Awaitable[FetchedPage]]:
    async def fetch(url: str) -> FetchedPage:
        from retinue.tools.web.fetcher import WebFetcher

        return await WebFetcher(hosts).fetch(url)

    return fetch


def _import_tool(reference: str) -> Tool:
    module, _, name = reference.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadConfig(
            f'tools: {reference!r} cannot be loaded ({error}). Write it as "module:name".'
        ) from error
    if not isinstance(found, Tool):
        raise BadConfig(f"tools: {reference!r} is not a tool. Decorate it with @retinue.tool.")
    return found


def check_model(model: Model, config: Config) -> None:
    """Raise BadConfig for a missing key, script, program or weights, before a session is created."""
    if model.provider == "scripted":
        if not Path(model.name).is_file():
            raise BadConfig(
                f"The script {model.name} is not a file. scripted:FILE reads replies from a JSON file."
            )
        return
    if model.provider == "local":
        _check_weights(model.name, config.models_dir)
        return
    if model.provider in CLI_AGENTS:
        cli_agent = CLI_AGENTS[model.provider]
        if shutil.which(cli_agent.binary, path=config.env.get("PATH", os.defpath)) is None:
            raise BadConfig(
                f"{cli_agent.binary} is not installed or not on the PATH. Install it with `{cli_agent.install}`."
            )
        return
    if model.provider not in ("openai", "anthropic"):
        raise BadConfig(f"The driver {model.provider} of {model.full_name} is not available")
    provider = config.providers.openai if model.provider == "openai" else config.providers.anthropic
    if not provider.api_key and provider.is_default and not own_server(model):
        raise BadConfig(f"No API key for {model.full_name}. Set {model.provider.upper()}_API_KEY.")


def _check_weights(name: str, home: Path) -> None:
    from retinue.providers.local.weights import LIBRARY_MISSING, get_weights, has_weights, is_usable

    weights = get_weights(name)
    if not has_weights(home, weights):
        raise BadConfig(
            f"The weights of local:{name} are not installed. Download them with `retinue models pull {name}`."
        )
    if not is_usable(home, weights):
        raise BadConfig(LIBRARY_MISSING)


async def defer_question(question: str, _options: Sequence[str]) -> str:
    """Suspend the run until somebody answers from elsewhere; for processes that stay running."""
    raise AnswerDeferred(f"nobody is here to answer {question!r} now")


async def reject_question(question: str, _options: Sequence[str]) -> str:
    """Refuse the question, because nobody can answer it."""
    raise UserUnavailable(
        f"nobody is here to answer {question!r}: go on without it, or say what you need to know"
    )
