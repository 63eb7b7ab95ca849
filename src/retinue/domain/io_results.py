"""Results of file access, commands and web requests."""

from msgspec import Struct

from retinue.domain.sandbox_level import SandboxLevel


class FileContent(Struct, frozen=True, kw_only=True):
    real_path: str
    data: bytes
    size: int
    """Size of the whole file; more than len(data) if it was cut at max_bytes."""


class WriteResult(Struct, frozen=True, kw_only=True):
    real_path: str
    is_new: bool
    """Whether the file did not exist before."""
    size: int


class FileEntry(Struct, frozen=True, kw_only=True):
    path: str
    """Relative to the requested folder."""
    real_path: str
    kind: str
    """file, dir, link or other; cut for the last entry if the limit was reached."""
    size: int = 0


class CommandResult(Struct, frozen=True, kw_only=True):
    """The result of a command."""

    exit_code: int | None
    """None if it was killed."""
    output: str
    """Standard output and error, interleaved as written; the middle of a long text is replaced by a notice.
    """
    sandbox_level: SandboxLevel
    duration_ms: int
    timed_out: bool = False
    full_output_path: str = ""
    """Path of the full output, as the agent sees it, if the output here is cut."""
    notes: tuple[str, ...] = ()
    """Further facts for the agent: what was removed, which limit was reached."""


class FetchedPage(Struct, frozen=True, kw_only=True):
    """A fetched web page."""

    url: str
    """The final URL after redirects."""
    status: int
    media_type: str
    text: str
    is_complete: bool = True
    """Whether the text is complete."""
