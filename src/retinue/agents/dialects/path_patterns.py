"""Files and places as other programs name them: what a definition may touch, never more than the workspace."""

from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects.key_aliases import Said, Verdict
from retinue.agents.validators import Path, Wrong


def allowed_paths(value: Any, path: Path) -> Said:
    """What it may touch: read, and change no more than that."""
    inside, say = _inside(validators.globs(value, path))
    sets = {"paths": {"read": inside, "write": inside}}
    return Said(sets=sets, verdict=Verdict.MAPPED, note=f"paths.read and paths.write{say}")


def denied_paths(value: Any, path: Path) -> Said:
    found = tuple(wide for each in validators.globs(value, path) for wide in _wide(each))
    return Said(sets={"paths": {"deny": found}}, verdict=Verdict.MAPPED, note="paths.deny")


_FILE_ACCESS = validators.table(
    dict.fromkeys(("read_paths", "write_paths", "read", "write", "deny", "denied_paths"), validators.globs)
)


def file_access(value: Any, path: Path) -> Said:
    if value in ("project", "workspace"):
        return Said(sets={}, verdict=Verdict.KEPT, note="the workspace, as ever")
    said: dict[str, tuple[str, ...]] = {}
    left = ""
    for key, globs in _FILE_ACCESS(value, path).items():
        kind = key.partition("_")[0].replace("denied", "deny")
        if kind in said:
            raise Wrong((*path, key), f"says the same as '{kind}'; keep one of the two")
        denied = tuple(wide for each in globs or () for wide in _wide(each))
        said[kind], say = (denied, "") if kind == "deny" else _inside(globs or ())
        left += say
    note = " and ".join(f"paths.{kind}" for kind in said) + left
    return Said(sets={"paths": said}, verdict=Verdict.MAPPED, note=note)


def network_access(value: Any, path: Path) -> Said:
    if validators.flag(value, path):
        return Said(sets={}, verdict=Verdict.KEPT, note="takes nothing away")
    return Said(sets={}, denies=("web_fetch",), verdict=Verdict.MAPPED, note="tool_deny: web_fetch")


def _inside(globs: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Patterns of the workspace: there they begin in the project, and a definition from elsewhere opens no other place."""
    kept = [each for each in globs if not each.startswith(("/", "~")) and ".." not in each.split("/")]
    left = [each for each in globs if each not in kept]
    found = tuple(workspace_glob(each) for each in kept)
    return found, f"; left out, being outside the workspace: {', '.join(left)}" if left else ""


def _wide(pattern: str) -> tuple[str, ...]:
    """A denial must not come out narrower: a name alone means that name in every folder, and all that is below it."""
    plain = pattern.removeprefix("./")
    if plain.endswith("/"):
        return (f"{plain}**",)
    if "/" in plain or plain.startswith("**"):
        return (plain,) if "*" in plain else (plain, f"{plain}/**")
    return (f"**/{plain}",) if "*" in plain else (f"**/{plain}", f"**/{plain}/**")


def workspace_glob(pattern: str) -> str:
    """Our pattern for one that begins in the project: with us `**` at its start would mean everywhere."""
    plain = pattern.removeprefix("./")
    if plain in ("", ".", "*"):
        return "./**"
    plain = f"{plain}**" if plain.endswith("/") else plain
    return f"./{plain}" if plain.startswith("**") else plain


def beyond(value: Any) -> list[str]:
    """The patterns of a `paths` field that open more than the workspace."""
    found: list[str] = []
    for key, globs in cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ():
        if key in ("read", "write") and isinstance(globs, list):
            words = (each for each in cast("list[Any]", globs) if isinstance(each, str))
            found += [each for each in words if each.startswith(("/", "~", "**")) or ".." in each.split("/")]
    return list(dict.fromkeys(found))
