"""Translate path permissions of other programs; an imported agent never gets more than the workspace."""

from typing import Any, cast

from retinue.agents import validators
from retinue.agents.dialects.key_translators import KeySupport, Translation
from retinue.agents.validators import InvalidValue, KeyPath


def translate_allowed_paths(value: Any, path: KeyPath) -> Translation:
    """Translate allowed paths into paths that may be read and written."""
    workspace_globs, note = _workspace_globs(validators.path_globs(value, path))
    fields = {"paths": {"read": workspace_globs, "write": workspace_globs}}
    return Translation(fields=fields, verdict=KeySupport.MAPPED, note=f"paths.read and paths.write{note}")


def translate_denied_paths(value: Any, path: KeyPath) -> Translation:
    denied = tuple(glob for each in validators.path_globs(value, path) for glob in _widen_denial(each))
    return Translation(fields={"paths": {"deny": denied}}, verdict=KeySupport.MAPPED, note="paths.deny")


_FILE_ACCESS_VALIDATOR = validators.map_with_keys(
    dict.fromkeys(
        ("read_paths", "write_paths", "read", "write", "deny", "denied_paths"), validators.path_globs
    )
)


def translate_file_access(value: Any, path: KeyPath) -> Translation:
    if value in ("project", "workspace"):
        return Translation(fields={}, verdict=KeySupport.KEPT, note="the workspace, which is the default")
    globs_by_kind: dict[str, tuple[str, ...]] = {}
    notes = ""
    for key, globs in _FILE_ACCESS_VALIDATOR(value, path).items():
        kind = key.partition("_")[0].replace("denied", "deny")
        if kind in globs_by_kind:
            raise InvalidValue((*path, key), f"is the same setting as '{kind}'; remove one of the two")
        denied = tuple(glob for each in globs or () for glob in _widen_denial(each))
        globs_by_kind[kind], note_part = (denied, "") if kind == "deny" else _workspace_globs(globs or ())
        notes += note_part
    note = " and ".join(f"paths.{kind}" for kind in globs_by_kind) + notes
    return Translation(fields={"paths": globs_by_kind}, verdict=KeySupport.MAPPED, note=note)


def translate_network_access(value: Any, path: KeyPath) -> Translation:
    if validators.bool_value(value, path):
        return Translation(fields={}, verdict=KeySupport.KEPT, note="restricts nothing")
    return Translation(
        fields={}, denied_tools=("web_fetch",), verdict=KeySupport.MAPPED, note="tool_deny: web_fetch"
    )


def _workspace_globs(globs: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Return the globs inside the workspace as native patterns, and a note about those left out.

    In the source they start in the project; an imported definition allows no other folder.
    """
    inside = [each for each in globs if not each.startswith(("/", "~")) and ".." not in each.split("/")]
    outside = [each for each in globs if each not in inside]
    found = tuple(workspace_glob(each) for each in inside)
    return found, f"; left out, because outside the workspace: {', '.join(outside)}" if outside else ""


def _widen_denial(pattern: str) -> tuple[str, ...]:
    """Return globs that deny at least as much as the source's pattern.

    A bare name means that name in every folder, and everything below it.
    """
    plain = pattern.removeprefix("./")
    if plain.endswith("/"):
        return (f"{plain}**",)
    if "/" in plain or plain.startswith("**"):
        return (plain,) if "*" in plain else (plain, f"{plain}/**")
    return (f"**/{plain}",) if "*" in plain else (f"**/{plain}", f"**/{plain}/**")


def workspace_glob(pattern: str) -> str:
    """Convert a pattern that starts in the project; a leading `**` would match everywhere here."""
    plain = pattern.removeprefix("./")
    if plain in ("", ".", "*"):
        return "./**"
    plain = f"{plain}**" if plain.endswith("/") else plain
    return f"./{plain}" if plain.startswith("**") else plain


def globs_outside_workspace(value: Any) -> list[str]:
    """Return the patterns of a `paths` field that reach outside the workspace."""
    found: list[str] = []
    for key, globs in cast("dict[Any, Any]", value).items() if isinstance(value, dict) else ():
        if key in ("read", "write") and isinstance(globs, list):
            patterns = (each for each in cast("list[Any]", globs) if isinstance(each, str))
            found += [
                each for each in patterns if each.startswith(("/", "~", "**")) or ".." in each.split("/")
            ]
    return list(dict.fromkeys(found))
