"""A side effect that a crash interrupted is reported as unknown and not repeated."""

from user_machine import UserMachine, wait_until

from retinue.testing.replies import text_reply, tool_call_reply


async def test_a_side_effect_interrupted_by_a_crash_is_shown_as_unknown_and_not_repeated(
    machine: UserMachine,
):
    """Shows: P10, P12."""
    log = machine.folder / "log"
    machine.write_config(approvals="auto", tools=["effects:act"])
    machine.env["PYTHONPATH"] = str(machine.folder)
    (machine.folder / "effects.py").write_text(
        "import asyncio, retinue\n"
        "@retinue.tool(effect='once', asks='never')\n"
        "async def act() -> str:\n"
        "    'Acts on the world.'\n"
        f"    open({str(log)!r}, 'a').write('once ')\n"
        "    await asyncio.sleep(0 if count() > 1 else 30)\n"
        "    return 'done'\n"
        f"def count(): return open({str(log)!r}).read().count('once')\n"
    )
    async with machine.serve_models([tool_call_reply(("act", {})), text_reply("I looked: it was done.")]):
        process = await machine.start("run", "--json", "Act.")
        await wait_until(lambda: log.exists() and log.read_text())
        await machine.kill(process)
        (run,) = (await machine("runs", "list", "--json")).json
        resumed = await machine("runs", "resume")
        assert resumed.code == 0, resumed.err
        shown = (await machine("runs", "show", run["run_id"], "--json")).json
        text = (await machine("runs", "show", run["run_id"])).out
    assert (shown["status"], log.read_text()) == ("done", "once ")
    assert [(each["tool"], each["state"]) for each in shown["effects"]] == [("act", "unknown")]
    assert "Unknown whether act took effect" in text
