"""Deeds from outside: what a kill cut off is told as unknown, and not done again."""

import asyncio
from collections.abc import Callable

from user_machine import UserMachine

from retinue.testing.replies import text_reply, tool_call_reply


async def until(true: Callable[[], bool]) -> None:
    while not true():  # noqa: ASYNC110  (another process does it: nothing to wait on)
        await asyncio.sleep(0.02)


async def test_a_deed_that_a_kill_cut_off_is_shown_as_unknown_and_not_repeated(machine: UserMachine):
    """Shows: P10, P12."""
    seen = machine.folder / "seen"
    machine.write_config(approvals="auto", tools=["deeds:act"])
    (machine.folder / "deeds.py").write_text(
        "import asyncio, retinue\n"
        "@retinue.tool(effect='once', asks='never')\n"
        "async def act() -> str:\n"
        "    'Acts on the world.'\n"
        f"    open({str(seen)!r}, 'a').write('once ')\n"
        "    await asyncio.sleep(0 if seen() > 1 else 30)\n"
        "    return 'done'\n"
        f"def seen(): return open({str(seen)!r}).read().count('once')\n"
    )
    async with machine.serve_models([tool_call_reply(("act", {})), text_reply("I looked: it was done.")]):
        process = await machine.start("run", "--json", "Act.", PYTHONPATH=str(machine.folder))
        await until(lambda: seen.exists() and bool(seen.read_text()))
        await machine.kill(process)
        (run,) = (await machine("runs", "list", "--json")).json
        resumed = await machine("runs", "resume", PYTHONPATH=str(machine.folder))
        assert resumed.code == 0, resumed.err
        shown = (await machine("runs", "show", run["run_id"], "--json")).json
        said = (await machine("runs", "show", run["run_id"])).out
    assert (shown["status"], seen.read_text()) == ("done", "once ")
    assert [(each["tool"], each["state"]) for each in shown["effects"]] == [("act", "unknown")]
    assert "Unknown whether act took effect" in said
