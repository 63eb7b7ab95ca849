"""Format text for a model: remove escape sequences, escape misleading names, and mark omissions."""

from retinue.domain.sanitize import strip_escapes

MAX_LINE_CHARS = 500
"""Characters of one line that a search shows."""


def is_binary(data: bytes) -> bool:
    """Return True if there is a NUL near the start, as other text tools test it."""
    return b"\0" in data[:8192]


def printable_name(name: str) -> str:
    """Format a file name on one line: invisible or misleading characters are escaped."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def clip_line(line: str, position: int = 0) -> str:
    """Strip escape sequences and clip a long line around a position."""
    if len(line) <= MAX_LINE_CHARS:
        return strip_escapes(line)
    start = max(0, min(position - MAX_LINE_CHARS // 4, len(line) - MAX_LINE_CHARS))
    end = start + MAX_LINE_CHARS
    return f"{'…' if start else ''}{strip_escapes(line[start:end])}{'…' if end < len(line) else ''}"


def workspace_path(real_path: str, root: str) -> str:
    """Format a real path as the agent would write it: relative to its workspace if inside."""
    prefix = root.rstrip("/") + "/"
    return printable_name(real_path.removeprefix(prefix))


def format_size(byte_count: int) -> str:
    """Format a number of bytes for a reader."""
    if byte_count < 10_000:  # noqa: PLR2004  (smaller numbers are shown exactly)
        return f"{byte_count:,} byte{'' if byte_count == 1 else 's'}"
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000)):
        if byte_count >= factor:
            return f"{byte_count / factor:.1f} {unit}"
    return f"{byte_count // 1000} kB"
