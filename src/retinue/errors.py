"""What can go wrong, named by who must act.

RetinueError                  a sentence for a person, a code for programs, an exit code for scripts
├── Usage                     the caller must say it differently                     exit 2
│   ├── BadConfig             the operator must mend the configuration file
│   └── BadDefinition         the author must mend an agent definition (path, line)
├── NotFound                  there is no such thing                                 exit 7
├── Refused                   a rule says no; only a person or the operator widens   exit 3
│   ├── OutOfScope            a path, tool or command outside the scope
│   └── Conflict              it is not as it must be for that now; look again
├── Failed                    it was tried and did not work                          exit 1
│   ├── Held                  another process has the session open
│   ├── Unreadable            a file of ours cannot be understood (path, line)
│   ├── NoRoom                the disk is full, read-only or broken
│   └── ModelFailed           the model's server, after all retries (reason)
├── TimedOut                  a deadline passed                                      exit 4
├── Cancelled                 a person stopped it                                    exit 5
└── NobodyHere                a person must answer and none is there                 exit 6
"""

from typing import ClassVar


class RetinueError(Exception):
    """One clear sentence; `code` is for programs and never changes once published."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1


class Usage(RetinueError):
    code = "usage"
    exit_code = 2


class BadConfig(Usage):
    code = "bad_config"


class BadDefinition(Usage):
    """`where` is a path, or a path and a line, and opens the sentence."""

    code = "bad_definition"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class NotFound(RetinueError):
    code = "not_found"
    exit_code = 7


class Refused(RetinueError):
    code = "refused"
    exit_code = 3


class OutOfScope(Refused):
    """A refusal with the facts a model needs to ask for the right thing."""

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
    """What is asked does not go with what is going on, or has happened already."""

    code = "conflict"


class Failed(RetinueError):
    code = "failed"


class Held(Failed):
    code = "held"


class Unreadable(Failed):
    code = "unreadable"

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class NoRoom(Failed):
    """`full`: one of Retinue's own disks takes no more now, and the same may go well once somebody has made room."""

    code = "no_room"

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class ModelFailed(Failed):
    """`reason` is one of the run's reasons; `partial` is the text heard before it failed."""

    code = "model_failed"

    def __init__(self, message: str, *, reason: str = "unreachable", partial: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.partial = partial


class TimedOut(RetinueError):
    code = "timed_out"
    exit_code = 4


class Cancelled(RetinueError):
    code = "cancelled"
    exit_code = 5


class NobodyHere(RetinueError):
    code = "nobody_here"
    exit_code = 6
