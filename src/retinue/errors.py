"""Error classes, named by who must act.

RetinueError              a sentence for a person, a code for programs, an exit code for scripts
├── UsageError            the caller must change the request                               exit 2
│   ├── BadConfig         the operator must correct the configuration file
│   └── BadDefinition     the author must correct an agent definition (path, line)
├── NotFound              the thing does not exist                                         exit 7
│   └── UnusableAgent     the agent's definition is invalid                                exit 2
├── Refused               a rule forbids it; only a person or the operator can allow it    exit 3
│   ├── OutOfScope        a path, tool or command is outside the scope
│   └── Conflict          the current state does not allow it; read it again
├── Failed                the attempt failed                                               exit 1
│   ├── SessionLocked     another process has the session open
│   ├── Unreadable        one of Retinue's files cannot be parsed (path, line)
│   ├── DiskError         the disk is full, read-only or broken
│   └── ModelFailed       the model's server failed, after all retries (reason)
├── TimedOut              a deadline passed                                                exit 4
├── Cancelled             a person cancelled it                                            exit 5
└── UserUnavailable       a person must answer and none is available                       exit 6
"""

from typing import ClassVar

BUG_MESSAGE = "This is a bug in Retinue"
"""Part of every message about an internal error; the crash test searches for it."""


class RetinueError(Exception):
    """Base class: one clear sentence; `code` is for programs and never changes once published."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class UsageError(RetinueError):
    code = "usage"
    exit_code = 2


class BadConfig(UsageError):
    code = "bad_config"


class BadDefinition(UsageError):
    """An agent definition is invalid. `location` is a path, or a path and a line, and begins the sentence."""

    code = "bad_definition"

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"{location}: {problem}")
        self.location = location
        self.problem = problem


class NotFound(RetinueError):
    code = "not_found"
    exit_code = 7


class UnusableAgent(NotFound):
    """There is no such agent because its definition is invalid; `__cause__` is the BadDefinition."""

    code = "bad_definition"
    exit_code = 2


class Refused(RetinueError):
    code = "refused"
    exit_code = 3


class OutOfScope(Refused):
    """A refusal with what a model needs to know to request the right access."""

    code = "out_of_scope"

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        allowed: tuple[str, ...] = (),
        denied: tuple[str, ...] = (),
        error: str = "out_of_scope",
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.allowed = allowed
        self.denied = denied
        self.error = error


class Conflict(Refused):
    """The request contradicts the current state, or has been carried out already."""

    code = "conflict"


class Failed(RetinueError):
    code = "failed"


class SessionLocked(Failed):
    code = "session_locked"


class Unreadable(Failed):
    code = "unreadable"

    def __init__(self, location: str, problem: str) -> None:
        super().__init__(f"{location}: {problem}")
        self.location = location
        self.problem = problem


class DiskError(Failed):
    """Retinue's own files cannot be read or written; for an agent's files a tool raises `Failed`.

    `is_full` means that the disk is full, so a retry may succeed.
    """

    code = "disk_error"

    def __init__(self, message: str, *, is_full: bool = False) -> None:
        super().__init__(message)
        self.is_full = is_full


class ModelFailed(Failed):
    """The model failed.

    `reason` is one of the run's reasons; `partial` is the text received before the failure. `outage_server`
    names the server if it is down for now, so that waiting for it makes sense; `breaks_off` says that it begins
    replies and does not complete them, so that each further attempt is paid for.
    """

    code = "model_failed"

    def __init__(
        self,
        message: str,
        *,
        reason: str = "unreachable",
        partial: str = "",
        outage_server: str = "",
        breaks_off: bool = False,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.partial = partial
        self.outage_server = outage_server
        self.breaks_off = breaks_off


class TimedOut(RetinueError):
    code = "timed_out"
    exit_code = 4


class Cancelled(RetinueError):
    code = "cancelled"
    exit_code = 5


class UserUnavailable(RetinueError):
    code = "user_unavailable"
    exit_code = 6
