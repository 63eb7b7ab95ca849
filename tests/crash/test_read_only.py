"""A home that cannot be written to: refused before anything is done, by the name of the place, and still readable."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path


async def ran(
    env: dict[str, str], folder: Path, *words: str, closed: Path | None = None
) -> tuple[int, str, str]:
    """One command, with a folder that is read-only to it."""
    walls = ["bwrap", "--dev-bind", "/", "/", "--ro-bind", str(closed), str(closed)] if closed else []
    process = await asyncio.create_subprocess_exec(
        *walls, sys.executable, "-m", "retinue", *words,
        env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def tree(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


async def test_nothing_is_begun_where_nothing_can_be_written(isolated_env: dict[str, str], tmp_path: Path):
    """Shows: P07."""
    script, work = tmp_path / "script.json", tmp_path / "work"
    work.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}"}
    home = Path(env["RETINUE_HOME"])
    script.write_text(json.dumps(["One."]))
    assert (await ran(env, work, "run", "Hello."))[0] == 0
    before = tree(home), tree(work)
    code, out, err = await ran(env, work, "run", "Again.", closed=home)
    assert (code, out) == (1, "")
    assert err.startswith(f"retinue: {home}/owners: owners cannot be kept here: Read-only file system")
    assert (tree(home), tree(work)) == before
    code, out, err = await ran(env, work, "sessions", "list", "--json", closed=home)
    assert (code, [each["last_snippet"] for each in json.loads(out)]) == (0, ["One."]), err


async def test_no_home_is_made_where_none_can_be(isolated_env: dict[str, str], tmp_path: Path):
    """Shows: P07."""
    script, above = tmp_path / "script.json", tmp_path / "above"
    script.write_text(json.dumps(["One."]))
    above.mkdir()
    env = isolated_env | {"RETINUE_MODEL": f"scripted:{script}", "RETINUE_HOME": str(above / "home")}
    code, _, err = await ran(env, tmp_path, "run", "Hello.", closed=above)
    assert (code, f"{above}/home" in err, "Traceback" in err) == (1, True, False)
    assert tree(above) == []
