"""A disk that fails at any step of making a child: nothing is begun, nothing is left, and the steps keep their order."""

import json
from pathlib import Path

from commands import run_process

MAKER = """
import asyncio, errno, json, os, sys
from pathlib import Path
import retinue

STEPS = ("open", "os.mkdir", "os.rename")
log, left, watching = [], 0, False

def step(event, args):
    global left, watching
    if not watching or event not in STEPS:
        return
    path = os.fspath(args[1 if event == "os.rename" else 0])
    if not isinstance(path, str) or "/sessions/" not in path:
        return
    log.append([event, path])
    left -= 1
    watching = not (event == "os.rename" and Path(path).parent.name == "agents")
    if left == 0:
        raise OSError(errno.EIO, "the disk is broken")

async def main():
    global left, watching
    found, made = {"faults": []}, []
    async with retinue.open() as app:
        parent = await app.run("Hi", agent="main", workspace=".")
        below = Path(parent.transcript_path).parent / "agents"
        with app.listen(lambda event: log.append([event.kind, event.run])):
            for fault in range(1, 100):
                os.utime(below.parent / "preset.md")  # else what was read of it a while ago is believed
                log.clear()
                left, watching = fault, True
                try:
                    child = await app.runs.spawn("Look", retinue.SpawnOptions(parent=parent.slug, agent="scout"))
                    watching = False
                    made.append(Path((await app.runs.wait(child.id)).transcript_path).parent.name)
                    if left > 0:
                        break
                except retinue.RetinueError as error:
                    watching = False
                    runs = [each.agent for each in await app.runs.list(live=False)]
                    folders = sorted(each.name for each in below.iterdir()) if below.exists() else []
                    fits = runs.count("scout") == len(made) and folders == sorted(made)
                    found["faults"].append([str(error), fits])
        found |= {"log": log, "child": child.transcript_path}
    print(json.dumps(found))

sys.addaudithook(step)
asyncio.run(main())
"""


def test_nothing_of_a_child_is_begun_before_all_of_it_is_there(tmp_path: Path, isolated_env: dict[str, str]):
    """Parent, folder, preset with its paths, plan, conversation; then it is known, and then it is at work.

    Shows: A096.
    """
    agents = Path(isolated_env["RETINUE_CONFIG"]) / "agents"
    agents.mkdir(parents=True)
    for name in ("main", "scout"):
        (agents / f"{name}.md").write_text(f"---\nname: {name}\n---\nYou are {name}.\n")
    (tmp_path / "script.json").write_text(json.dumps({"main": ["Hi."], "scout": ["Found."]}))
    isolated_env["RETINUE_MODEL"] = f"scripted:{tmp_path}/script.json"
    told = run_process(["-c", MAKER], timeout=60, env=isolated_env, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert len(found["faults"]) >= 8
    for error, fits in found["faults"]:
        assert fits, f"something of a child is left after: {error}"
    steps = [
        (kind, f"new {Path(path).name}" if "/.staging/" in path else Path(path).name)
        for kind, path in found["log"]
    ]
    child = Path(found["child"]).parent.name
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
    parent = Path(found["child"]).parents[2]
    opened = [Path(path).parent for kind, path in found["log"] if kind == "open"]
    assert opened[0] == parent, "the parent is looked at first"
    assert "paths:" in (Path(found["child"]).parent / "preset.md").read_text()
