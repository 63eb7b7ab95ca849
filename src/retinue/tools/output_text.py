"""Text made fit for a model: no escape sequences, no names that mislead, and every cut says that it is one."""

from retinue.domain.sanitize import without_escapes

LINE = 500
"""Characters of one line that a search shows."""


def is_binary(data: bytes) -> bool:
    """A NUL near the start, as every text tool decides it."""
    return b"\0" in data[:8192]


def shown_name(name: str) -> str:
    """A file's name on one line: characters that would not show, or would mislead, are written out."""
    if name.isprintable():
        return name
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def shown_line(line: str, at: int = 0) -> str:
    """A long line is cut around the place that matters."""
    if len(line) <= LINE:
        return without_escapes(line)
    start = max(0, min(at - LINE // 4, len(line) - LINE))
    end = start + LINE
    return f"{'…' if start else ''}{without_escapes(line[start:end])}{'…' if end < len(line) else ''}"


def placed(real: str, root: str) -> str:
    """A real name as the agent would write it: relative to its workspace where it is inside."""
    prefix = root.rstrip("/") + "/"
    return shown_name(real.removeprefix(prefix))


def size(count: int) -> str:
    """Bytes for a reader."""
    if count < 10_000:  # noqa: PLR2004  (below it the exact number is as short)
        return f"{count:,} byte{'' if count == 1 else 's'}"
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count // 1000} kB"
