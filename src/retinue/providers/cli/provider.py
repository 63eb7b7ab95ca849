"""Provider for CLI agents: one turn is one process whose output is read line by line."""

import os
import re
from collections.abc import Callable
from uuid import uuid4

from msgspec.structs import replace

from retinue.domain.cli_agent import CliAgentCommand, CliAgentSandbox, ProcessExit
from retinue.domain.model_turn import Model, ModelReply, ModelRequest, ReplyDelta
from retinue.domain.permissions.scope import Scope
from retinue.domain.providers import CLI_AGENTS, MAIN_SERVERS, MODEL_APIS
from retinue.domain.run import Reason
from retinue.domain.sandbox_level import SandboxLevel
from retinue.errors import ModelFailed
from retinue.providers.cli.credentials import CliCredentials, resolve_credentials
from retinue.providers.cli.json_lines import JsonLineParser
from retinue.providers.cli.protocol import CliProtocol, HomeSettings, Invocation
from retinue.providers.cli.reply_parser import CliReplyBuilder
from retinue.providers.cli.session_state import (
    ResumePlan,
    StateLocation,
    encode_session_state,
    message_with_history,
    plan_resume,
)
from retinue.providers.cli.settings import build_launch_options
from retinue.providers.errors import ProviderError, sanitize_server_text
from retinue.providers.interface import CliAgentLauncher, ProviderServices, ProviderSettings, check_encryption

MAX_MESSAGE_BYTES = 120_000
"""Longest command-line argument that the kernel accepts, in bytes."""

_AUTH_ERROR = re.compile(
    r"api.?key|log ?in\b|logged in|credential|authenticat|unauthorized|\b40[13]\b", re.IGNORECASE
)
_RATE_LIMIT_ERROR = re.compile(r"rate.?limit|overloaded|usage limit|quota|\b(?:429|529)\b", re.IGNORECASE)
_CONVERSATION_NOT_FOUND = re.compile(
    r"no (?:conversation|session|rollout|thread|saved)|(?:session|conversation|thread|rollout)\b.*not found"
    r"|failed to (?:find|load|open|read|resume)\b.*(?:session|conversation|thread|rollout)",
    re.IGNORECASE,
)


def create_cli_provider(
    protocol: CliProtocol, model: Model, settings: ProviderSettings, services: ProviderServices
) -> "CliProvider":
    credentials = resolve_credentials(protocol, model.settings, *_provider_credentials(protocol, settings))
    for vendor, url in credentials.vendor_urls.items():
        check_encryption(url, vendor, settings)
    return CliProvider(protocol, model, services.cli_agent_launcher(), credentials, services.redact)


def _provider_credentials(
    protocol: CliProtocol, settings: ProviderSettings
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that CLI agents may get keys from, and base URLs that are not the default."""
    servers = {name: settings.providers[name] for name in MAIN_SERVERS}
    keys = {MODEL_APIS[name].key_variable: each.api_key for name, each in servers.items()}
    if protocol.vendor in settings.providers:
        keys[protocol.key_variable] = settings.providers[protocol.vendor].api_key
    variables = {**{name: str(key) for name, key in keys.items() if key}, **settings.env}
    return variables, {name: each.base_url for name, each in servers.items() if not each.is_default}


class CliProvider:
    """Provider for a CLI agent: claude, codex, pi.

    A reply counts only if the program reports the end of its turn.
    """

    def __init__(
        self,
        protocol: CliProtocol,
        model: Model,
        runner: CliAgentLauncher,
        credentials: CliCredentials,
        redact: Callable[[str], str],
    ) -> None:
        self._provider_name = model.provider
        self._agent_kind = CLI_AGENTS[model.provider]
        self._protocol = protocol
        self._launch_options = build_launch_options(model, protocol)
        self._runner = runner
        self._credentials = credentials
        self._redact = redact
        self._startup_args: tuple[str, ...] = ()
        """Additional arguments without which the program did not start."""

    async def request_reply(
        self, request: ModelRequest, on_delta: Callable[[ReplyDelta], None]
    ) -> ModelReply:
        scope = request.scope or Scope()
        agent_sandbox = await self._runner.prepare_home(request.session_id)
        location = StateLocation(
            program=self._provider_name,
            session=request.session_id,
            level=str(agent_sandbox.level),
            cwd=self._working_folder(scope.root),
        )
        plan = plan_resume(request.entries, location)
        plan = (
            plan
            if os.path.isdir(agent_sandbox.home)  # noqa: PTH112
            else ResumePlan(conversation_id="", message=message_with_history(request.entries))
        )

        async def run_program(resume_plan: ResumePlan) -> tuple[CliReplyBuilder, ProcessExit]:
            builder = CliReplyBuilder(on_delta)
            parser = JsonLineParser(
                lambda event: self._protocol.read_event(event, builder), builder.report_activity
            )
            command = self._build_command(resume_plan, request, agent_sandbox, builder)
            process_exit = await self._runner.run(
                command,
                session=request.session_id,
                scope=scope,
                agent_sandbox=agent_sandbox,
                on_output=parser.feed,
            )
            parser.close()
            return builder, process_exit

        builder, process_exit = await run_program(plan)
        if extra_args := self._find_startup_fix(builder, process_exit):
            self._startup_args = extra_args
            builder, process_exit = await run_program(plan)
        if plan.conversation_id and self._conversation_was_lost(builder, process_exit):
            builder, process_exit = await run_program(
                ResumePlan(conversation_id="", message=message_with_history(request.entries))
            )
        return self._build_reply(builder, process_exit, request, location)

    async def close(self) -> None:
        """Do nothing; every process ends with its turn."""

    def _build_command(
        self,
        plan: ResumePlan,
        request: ModelRequest,
        agent_sandbox: CliAgentSandbox,
        builder: CliReplyBuilder,
    ) -> CliAgentCommand:
        options, protocol = self._launch_options, self._protocol
        is_sandboxed = agent_sandbox.level is SandboxLevel.STRICT
        root = (request.scope or Scope()).root
        builder.conversation_id = plan.conversation_id or (
            str(uuid4()) if protocol.accepts_conversation_id else ""
        )
        invocation = Invocation(
            message=_as_argument(plan.message, protocol),
            conversation_id=builder.conversation_id,
            is_resume=bool(plan.conversation_id),
            extra_args=(*options.extra_args, *self._startup_args),
            home=agent_sandbox.visible_home,
        )
        home_settings = HomeSettings(
            prompt=request.system,
            is_sandboxed=is_sandboxed,
            cwd=self._working_folder(root),
            vendor_urls=self._credentials.vendor_urls,
        )
        return CliAgentCommand(
            binary=self._agent_kind.binary,
            args=protocol.build_args(invocation),
            wrapper=options.wrapper,
            install=self._agent_kind.install,
            env={
                **protocol.base_env,
                **(protocol.sandboxed_env if is_sandboxed else {}),
                **self._credentials.env,
                **options.env,
            },
            files=protocol.build_home_files(home_settings),
            hosts=self._credentials.hosts,
            forwards=self._credentials.forwards,
            workdir=options.workdir,
        )

    def _working_folder(self, root: str) -> str:
        return os.path.normpath(os.path.join(root, self._launch_options.workdir))  # noqa: PTH118

    def _find_startup_fix(self, builder: CliReplyBuilder, process_exit: ProcessExit) -> tuple[str, ...]:
        """Return the arguments named in the error of a program that refused to start."""
        if process_exit.exit_code in (0, None) or not builder.has_no_output or self._startup_args:
            return ()
        return next(
            (
                args
                for error_text, args in self._protocol.startup_fixes.items()
                if error_text in process_exit.stderr_tail
            ),
            (),
        )

    def _conversation_was_lost(self, builder: CliReplyBuilder, process_exit: ProcessExit) -> bool:
        """Return whether the program lost its session before doing anything.

        Then the turn can be repeated with the history from the transcript.
        """
        output = f"{builder.error}\n{builder.last_warning}\n{process_exit.stderr_tail}"
        failed = builder.error or not builder.is_finished or process_exit.exit_code != 0
        return bool(failed) and builder.has_no_output and _CONVERSATION_NOT_FOUND.search(output) is not None

    def _build_reply(
        self,
        builder: CliReplyBuilder,
        process_exit: ProcessExit,
        request: ModelRequest,
        location: StateLocation,
    ) -> ModelReply:
        if builder.error or not builder.is_finished or process_exit.exit_code not in (0, None):
            raise self._make_error(builder, process_exit)
        reply = builder.build()
        texts = [*(step.text for step in reply.steps), reply.text]
        state = encode_session_state(
            builder.conversation_id, location, request.entries, [self._redact(text) for text in texts]
        )
        return replace(reply, provider_data=(state,) if builder.conversation_id else ())

    def _make_error(self, builder: CliReplyBuilder, process_exit: ProcessExit) -> ProviderError:
        """Return the error of a failed turn.

        Never retried: the program may have acted, and it retries by itself.
        """
        cause = builder.error or builder.last_warning or process_exit.stderr_tail
        binary = self._agent_kind.binary
        reason = (
            Reason.AUTH
            if _AUTH_ERROR.search(cause)
            else Reason.RATE_LIMITED
            if _RATE_LIMIT_ERROR.search(cause)
            else Reason.PROVIDER
        )
        if not builder.error and not builder.is_finished:
            outcome = (
                "was killed"
                if process_exit.exit_code is None
                else f"exited with code {process_exit.exit_code}"
            )
            explanation = f": {sanitize_server_text(cause)}" if cause.strip() else ", with no error message"
            reason = Reason.INCOMPLETE if reason is Reason.PROVIDER else reason
            return ProviderError(
                f"{binary} {outcome} before its turn was complete{explanation}", reason=reason
            )
        details = (
            f" ({sanitize_server_text(process_exit.stderr_tail)})"
            if builder.error and process_exit.stderr_tail.strip()
            else ""
        )
        if reason is Reason.AUTH:
            keys = ", ".join(list(self._protocol.credential_variables)[:3])
            details += (
                f". Logins in your home folder are not used. Set one of {keys} in the environment of Retinue"
            )
        return ProviderError(f"{binary} failed: {sanitize_server_text(cause)}{details}", reason=reason)


def _as_argument(text: str, protocol: CliProtocol) -> str:
    """Return the text as one argument that the program takes as a message, not as an option or a command.

    A space in front is enough for all of them, and the model sees it as part of the message.
    """
    encoded = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise ModelFailed(
            f"the message is {len(encoded):,} bytes long; the limit is {MAX_MESSAGE_BYTES:,}. "
            "Put it into a file in the workspace and name the file",
            reason=Reason.CONFIG,
        )
    argument = encoded.decode()
    is_command = argument in protocol.command_words or argument.startswith(("-", *protocol.command_prefixes))
    return f" {argument}" if is_command else argument
