"""Composition root: build providers, tools, models and scheduler callbacks from the configuration."""

import importlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from retinue.app.sandbox_loader import SandboxLoader
from retinue.config.load import Config
from retinue.domain.agent import Agent
from retinue.domain.clock import Clock
from retinue.domain.io_results import FetchedPage
from retinue.domain.model_selection import select_model
from retinue.domain.model_turn import Model
from retinue.domain.redaction import Redactor
from retinue.domain.run import Run, Status
from retinue.errors import BadConfig, RetinueError, UsageError, UserUnavailable
from retinue.interfaces import Provider, RuntimeContext, Tool
from retinue.providers import registry
from retinue.providers.fallback import FallbackProvider
from retinue.providers.interface import ProviderServices, own_api_key
from retinue.providers.learned_changes import LEARNED_FILE, LearnedChanges
from retinue.providers.request_limits import request_limits
from retinue.providers.retry import RetryingProvider
from retinue.providers.retry_policy import retry_settings
from retinue.runtime import recovery, run_control
from retinue.runtime.agent_loop import fail_run, run_agent_loop
from retinue.runtime.approvals import AnswerDeferred
from retinue.runtime.disk_full import requeue_disk_waiters
from retinue.runtime.idle_announcements import write_idle_announcements
from retinue.runtime.interrupt_registry import InterruptRegistry
from retinue.runtime.interrupts import apply_requested_interruptions
from retinue.runtime.run_creation import claim_run
from retinue.runtime.watchers import WatcherNotifier
from retinue.tools.registry import built_in_tools
from retinue.worker.worker import SchedulerCallbacks

QuestionCallback = Callable[[str, Sequence[str]], Awaitable[str]]


def scheduler_callbacks(
    context: RuntimeContext,
    on_crash: Callable[[str, BaseException], None],
    is_alive: Callable[[str], bool],
    record_alive: Callable[[], None] = lambda: None,
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

    async def expire_approvals_and_find_resumable_runs() -> list[str]:
        await run_control.expire_approvals(context, is_alive=is_alive)
        await run_control.wake_overdue_runs(context)
        return await run_control.runs_woken_elsewhere(context)

    async def requeue_runs_of_dead_processes() -> None:
        await recovery.requeue_runs_of_dead_processes(context, is_alive)
        await requeue_disk_waiters(context, is_alive)

    return SchedulerCallbacks(
        claim_run=lambda run_id: claim_run(run_id, context),
        execute_run=lambda run_id, created_run: run_agent_loop(
            run_id, context, interruptions, created=created_run
        ),
        fail_run=report_failure,
        has_ended=is_finished,
        find_cancel_requests=lambda: run_control.requested_cancellations(context),
        deliver_interrupts=lambda: apply_requested_interruptions(context, interruptions),
        find_resumable_runs=expire_approvals_and_find_resumable_runs,
        requeue_runs_of_dead_processes=requeue_runs_of_dead_processes,
        notify_watchers=WatcherNotifier(context).notify_watchers,
        write_announcements=lambda: write_idle_announcements(context),
        wake_overdue_runs=wake_overdue,
        record_alive=record_alive,
        has_changes=has_changes,
    )


def _is_suspended_here(run: Run, context: RuntimeContext, is_alive: Callable[[str], bool]) -> bool:
    """Return whether a run waits and no other process will continue it.

    Its owner is this process, the connected daemon, or a process that is dead.
    """
    is_ours = run.owner_id in (context.owners.own_id, context.owners.id_for_new_run())
    return run.status is Status.WAITING and (is_ours or not is_alive(run.owner_id))


def model_provider(config: Config, sandbox_loader: SandboxLoader, redact: Redactor, clock: Clock) -> Provider:
    """Return the provider of all models; the module of each is imported when it is first used."""
    services = ProviderServices(
        redact=redact,
        cli_agent_launcher=lambda: sandbox_loader.cli_agent_runner,
        learned_changes=LearnedChanges(clock, config.home / LEARNED_FILE if config.is_persistent else None),
        add_secret=redact.add_secret,
        now=clock.now,
    )
    limits = {name: request_limits(each) for name, each in config.providers.items()}
    retrying = RetryingProvider(
        registry.provider_factories(config, services),
        clock,
        settings_by_provider={name: retry_settings(each) for name, each in config.providers.items()},
        limits_by_provider={name: each for name, each in limits.items() if each is not None},
    )
    return FallbackProvider(retrying, lambda model: registry.check_model(model, config))


def model_selector(config: Config, redact: Redactor) -> Callable[[Agent, str | None], Model]:
    """Return a function that selects an agent's model.

    The key of a definition's own server is registered as a secret before anything can be written.
    """

    def selected_model(agent: Agent, override: str | None) -> Model:
        model = select_model(
            agent, override, config.default_model(), config.providers, config.fallback_models
        )
        redact.add_secret(own_api_key(model, config.env))
        return model

    return selected_model


def build_tool_table(config: Config, program_tools: Sequence[Tool]) -> dict[str, Tool]:
    """Return built-in tools, the configuration's and the program's, by name.

    Web tools exist only if the configuration lists allowed hosts.

    Raises:
        UsageError: Two tools have the same name.
    """
    tool_by_name = built_in_tools()
    if config.web_hosts:
        from retinue.tools.web.web_fetch import make_web_fetch

        tool_by_name["web_fetch"] = make_web_fetch(_web_fetcher(config))
    for tool in (*(_import_tool(reference) for reference in config.tools), *program_tools):
        name = tool.spec.name
        if name in tool_by_name:
            raise UsageError(f"A tool named {name!r} already exists. Give your tool another name.")
        tool_by_name[name] = tool
    return tool_by_name


def _web_fetcher(config: Config) -> Callable[[str], Awaitable[FetchedPage]]:
    async def fetch(url: str) -> FetchedPage:
        from retinue.http.network import network_settings
        from retinue.tools.web.fetcher import WebFetcher

        return await WebFetcher(config.web_hosts, network=network_settings(config.env)).fetch(url)

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
    """Raise BadConfig for a missing key, script, program or weights, before a session is created.

    A model with a fallback that can be used is accepted: the run says why it asks the fallback.
    """
    try:
        registry.check_model(model, config)
    except BadConfig:
        if not any(_can_use(each, config) for each in model.fallbacks):
            raise


def _can_use(model: Model, config: Config) -> bool:
    try:
        registry.check_model(model, config)
    except BadConfig:
        return False
    return True


async def defer_question(question: str, _options: Sequence[str]) -> str:
    """Suspend the run until somebody answers from elsewhere; for processes that stay running."""
    raise AnswerDeferred(f"No user is available to answer {question!r} now.")


async def reject_question(question: str, _options: Sequence[str]) -> str:
    """Refuse the question, because nobody can answer it."""
    raise UserUnavailable(
        f"No user is available to answer {question!r}. Continue without an answer, or state what you need to know."
    )
