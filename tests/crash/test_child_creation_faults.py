"""A disk error at any step of creating a child session: no run starts and no file stays."""

import json
from pathlib import Path

from commands import run_process

CREATE_CHILDREN = """
import asyncio, errno, json, os, sys
from pathlib import Path
import retinue

STEPS = ("open", "os.mkdir", "os.rename")
log, steps_left, watching = [], 0, False

def step(event, args):
    global steps_left, watching
    if not watching or event not in STEPS:
        return
    path = os.fspath(args[1 if event == "os.rename" else 0])
    if not isinstance(path, str) or "/sessions/" not in path:
        return
    log.append([event, path])
    steps_left -= 1
    watching = not (event == "os.rename" and Path(path).parent.name == "agents")
    if steps_left == 0:
        raise OSError(errno.EIO, "the disk is broken")

async def main():
    global steps_left, watching
    outcome, created = {"faults": []}, []
    async with retinue.open() as app:
        parent = await app.run("Hi", agent="main", workspace=".")
        below = Path(parent.transcript_path).parent / "agents"
        with app.listen(lambda event: log.append([event.kind, event.run])):
            for fault in range(1, 100):
                os.utime(below.parent / "preset.md")  # otherwise the cached preset is used
                log.clear()
                steps_left, watching = fault, True
                try:
                    child = await app.runs.spawn("Look", retinue.SpawnOptions(parent=parent.slug, agent="scout"))
                    watching = False
                    created.append(Path((await app.runs.wait(child.id)).transcript_path).parent.name)
                    if steps_left > 0:
                        break
                except retinue.RetinueError as error:
                    watching = False
                    runs = [each.agent for each in await app.runs.list(live=False)]
                    folders = sorted(each.name for each in below.iterdir()) if below.exists() else []
                    is_clean = runs.count("scout") == len(created) and folders == sorted(created)
                    outcome["faults"].append([str(error), is_clean])
        outcome |= {"log": log, "child": child.transcript_path}
    print(json.dumps(outcome))

sys.addaudithook(step)
asyncio.run(main())
"""


def test_a_child_run_is_queued_only_after_its_session_is_complete(
    tmp_path: Path, isolated_env: dict[str, str]
):
    """The order is: the parent, the folder, preset, plan and conversation, then the run is queued, then it starts.

    Shows: A096.
    """
    agents = Path(isolated_env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir(parents=True)
    for name in ("main", "scout"):
        (agents / f"{name}.md").write_text(f"---\nname: {name}\n---\nYou are {name}.\n")
    (tmp_path / "script.json").write_text(json.dumps({"main": ["Hi."], "scout": ["Found."]}))
    isolated_env["RETINUE_MODEL"] = f"scripted:{tmp_path}/script.json"
    result = run_process(["-c", CREATE_CHILDREN], timeout=60, env=isolated_env, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    outcome = json.loads(result.stdout)
    assert len(outcome["faults"]) >= 8
    for error, is_clean in outcome["faults"]:
        assert is_clean, f"part of a child is left after: {error}"
    steps = [
        (kind, f"new {Path(path).name}" if "/.staging/" in path else Path(path).name)
        for kind, path in outcome["log"]
    ]
    child = Path(outcome["child"]).parent.name
    order = [
        ("open", "new preset.md"),
        ("open", "new scope-plan.yml"),
        ("open", "new session.md"),
        ("os.rename", child),
    ]
    names = [each for each in steps if each in order]
    assert names == order
    kinds = [kind for kind, _ in steps]
    assert kinds.index("os.mkdir") < steps.index(order[0])
    assert (
        steps.index(order[-1])
        < kinds.index("run.queued")
        < kinds.index("run.started")
        < kinds.index("run.ended")
    )
    parent = Path(outcome["child"]).parents[2]
    opened = [Path(path).parent for kind, path in outcome["log"] if kind == "open"]
    assert opened[0] == parent, "the parent is read first"
    assert "paths:" in (Path(outcome["child"]).parent / "preset.md").read_text()
