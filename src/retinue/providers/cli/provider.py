"""The driver of agents that are programs: one turn is one process, read line by line as it speaks."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

from retinue.domain.cli_agent import PROGRAMS, Gone, Program, Seat
from retinue.domain.model_turn import Delta, Model, Reply, Request
from retinue.domain.permissions.scope import Scope
from retinue.domain.run import Reason
from retinue.domain.sandbox_level import Level
from retinue.errors import ModelFailed
from retinue.providers.cli.claude import CLAUDE
from retinue.providers.cli.codex import CODEX
from retinue.providers.cli.credentials import Access
from retinue.providers.cli.json_lines import Lines
from retinue.providers.cli.pi import PI
from retinue.providers.cli.protocol import Instructions, Speech, Words
from retinue.providers.cli.reply_parser import Account
from retinue.providers.cli.session_state import Place, Recalled, block, from_the_file, recalled
from retinue.providers.cli.settings import settings_of
from retinue.providers.errors import Trouble, quoted

SPEECHES: Mapping[str, Speech] = {"claude-cli": CLAUDE, "codex-cli": CODEX, "pi-cli": PI}
MAX_MESSAGE = 120_000
"""Bytes: the kernel takes no longer word."""

_AUTH = re.compile(
    r"api.?key|log ?in\b|logged in|credential|authenticat|unauthorized|\b40[13]\b", re.IGNORECASE
)
_RATE = re.compile(r"rate.?limit|overloaded|usage limit|quota|\b(?:429|529)\b", re.IGNORECASE)
_FORGOTTEN = re.compile(
    r"no (?:conversation|session|rollout|thread|saved)|(?:session|conversation|thread|rollout)\b.*not found"
    r"|failed to (?:find|load|open|read|resume)\b.*(?:session|conversation|thread|rollout)",
    re.IGNORECASE,
)


class Programs(Protocol):
    """Where programs are run: held as tightly as this machine can."""

    async def seat(self, session: str) -> Seat: ...

    async def run(
        self, program: Program, *, session: str, scope: Scope, seat: Seat, said: Callable[[bytes], None]
    ) -> Gone:
        """Returns, or raises, when nothing of it lives. A cancellation ends it first, then passes."""
        ...


class Cli:
    """claude, codex or pi. What a program says is believed only when it says that its turn is over."""

    def __init__(
        self, model: Model, programs: Programs, access: Access, redact: Callable[[str], str]
    ) -> None:
        self._name = model.driver
        self._kind = PROGRAMS[model.driver]
        self._speech = SPEECHES[model.driver]
        self._settings = settings_of(model)
        self._programs = programs
        self._access = access
        self._redact = redact
        self._more: tuple[str, ...] = ()
        """Words without which it would not start here."""

    async def turn(self, request: Request, heard: Callable[[Delta], None]) -> Reply:
        scope = request.scope or Scope()
        seat = await self._programs.seat(request.session)
        place = Place(
            program=self._name, session=request.session, level=str(seat.level), cwd=self._cwd(scope.root)
        )
        known = recalled(request.entries, place)
        known = known if os.path.isdir(seat.home) else Recalled(id="", text=from_the_file(request.entries))  # noqa: PTH112

        async def asked(what: Recalled) -> tuple[Account, Gone]:
            account = Account(heard)
            lines = Lines(lambda event: self._speech.read(event, account), account.alive)
            program = self._program(what, request, seat, account)
            gone = await self._programs.run(
                program, session=request.session, scope=scope, seat=seat, said=lines.take
            )
            lines.close()
            return account, gone

        account, gone = await asked(known)
        if words := self._mended(account, gone):
            self._more = words
            account, gone = await asked(known)
        if known.id and self._forgot(account, gone):
            account, gone = await asked(Recalled(id="", text=from_the_file(request.entries)))
        return self._reply(account, gone, request, place)

    async def close(self) -> None:
        """Every process ends with its turn."""

    def _program(self, what: Recalled, request: Request, seat: Seat, account: Account) -> Program:
        settings, speech = self._settings, self._speech
        held = seat.level is Level.STRICT
        root = (request.scope or Scope()).root
        account.id = what.id or (str(uuid4()) if speech.mints else "")
        words = Words(
            text=_one_word(what.text),
            id=account.id,
            resumes=bool(what.id),
            extra=(*settings.extra, *self._more),
            home=seat.seen,
        )
        given = Instructions(prompt=request.system, held=held, cwd=self._cwd(root), urls=self._access.urls)
        return Program(
            binary=self._kind.binary,
            argv=speech.argv(words),
            wrapper=settings.wrapper,
            install=self._kind.install,
            env={**speech.quiet, **(speech.held if held else {}), **self._access.env, **settings.env},
            files=speech.files(given),
            hosts=self._access.hosts,
            forwards=self._access.forwards,
            workdir=settings.workdir,
        )

    def _cwd(self, root: str) -> str:
        return os.path.normpath(os.path.join(root, self._settings.workdir))  # noqa: PTH118

    def _mended(self, account: Account, gone: Gone) -> tuple[str, ...]:
        """A program that would not start says which word it misses."""
        if gone.exit in (0, None) or not account.silent or self._more:
            return ()
        return next((words for said, words in self._speech.mends.items() if said in gone.complaint), ())

    def _forgot(self, account: Account, gone: Gone) -> bool:
        """The program does not find its own memory, and has done nothing yet: it can be told from the file."""
        said = f"{account.trouble}\n{account.complaint}\n{gone.complaint}"
        failed = account.trouble or not account.over or gone.exit != 0
        return bool(failed) and account.silent and _FORGOTTEN.search(said) is not None

    def _reply(self, account: Account, gone: Gone, request: Request, place: Place) -> Reply:
        if account.trouble or not account.over or gone.exit not in (0, None):
            raise self._trouble(account, gone)
        reply = account.reply()
        texts = [*(step.text for step in reply.steps), reply.text]
        kept = block(account.id, place, request.entries, [self._redact(text) for text in texts])
        return replace(reply, thoughts=(kept,) if account.id else ())

    def _trouble(self, account: Account, gone: Gone) -> Trouble:
        """Asked again by nobody: a program that failed may have acted, and tries by itself what can be tried again."""
        why = account.trouble or account.complaint or gone.complaint
        binary = self._kind.binary
        reason = (
            Reason.AUTH
            if _AUTH.search(why)
            else Reason.RATE_LIMITED
            if _RATE.search(why)
            else Reason.PROVIDER
        )
        if not account.trouble and not account.over:
            how = "was ended from outside" if gone.exit is None else f"ended with exit code {gone.exit}"
            said = f": {quoted(why)}" if why.strip() else ", and does not say why"
            reason = Reason.INCOMPLETE if reason is Reason.PROVIDER else reason
            return Trouble(f"{binary} {how} before its turn was over{said}", reason=reason)
        more = f" ({quoted(gone.complaint)})" if account.trouble and gone.complaint.strip() else ""
        if reason is Reason.AUTH:
            keys = ", ".join(list(self._speech.keys)[:3])
            more += f"; logins of your own home are not seen here: set one of {keys} where Retinue is started"
        return Trouble(f"{binary} failed: {quoted(why)}{more}", reason=reason)


def _one_word(text: str) -> str:
    """As one word of a command that is not taken for an option."""
    safe = text.replace("\0", "\ufffd").encode("utf-8", "replace")
    if len(safe) > MAX_MESSAGE:
        raise ModelFailed(
            f"the message is {len(safe):,} bytes long, and a program takes {MAX_MESSAGE:,} at most: "
            "put it into a file of the workspace and name that",
            reason=Reason.CONFIG,
        )
    return f" {safe.decode()}" if safe.startswith(b"-") else safe.decode()
