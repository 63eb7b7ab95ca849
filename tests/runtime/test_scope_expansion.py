"""request_scope_expansion: answer `add` puts one resource into the session's preset.md and changes no other right."""

import json
from pathlib import Path

import pytest
from runtime_fixture import RuntimeFixture, RuntimeProcess

from retinue.domain.agent import Agent
from retinue.domain.approval import Answer, ApprovalPolicy
from retinue.domain.run import Run, Status
from retinue.domain.session import Session
from retinue.runtime.session_scope import compute_scope, load_definition
from retinue.testing.scripted_provider import text_reply, tool_call_reply

FRONT = "temperature: 0.5  # calm\n# about rights\n"


def expansion_call(name: str, resource: str) -> tuple[str, str]:
    return "request_scope_expansion", json.dumps({"tool": name, "resource": resource, "reason": "Needed."})


def tmp_folder_for(_session: Session) -> str:
    return "/private"


async def add_to_scope(process: RuntimeProcess, run: Run) -> tuple[Agent, Session, str]:
    """Answer the pending approval with `add`; return the session's definition, the session and its preset.md."""
    (approval,) = await process.pending_approvals()
    await process.answer_approval(approval, Answer.ADD)
    assert (await process.wait(run)).status is Status.DONE
    assert (await process.tool_results(run))[0].text.startswith("Added to your scope: ")
    session = await process.store.find(run.session_id)
    return (
        await load_definition(session, process.context),
        session,
        (Path(session.path) / "preset.md").read_text(),
    )


@pytest.mark.parametrize("front", ["", "paths:\n  deny:  # never\n    - '**/x'\n"])
async def test_adding_a_readable_file_keeps_the_rest_of_the_workspace_readable(
    runtime: RuntimeFixture, front: str
):
    """Shows: A093, L006."""
    other, near = runtime.folder / "other.txt", runtime.workspace / "near.txt"
    for path in (other, near):
        path.write_text(path.name)
    template = runtime.write_agent("reader", FRONT + front).read_text()
    read = [("read", json.dumps({"path": str(path)})) for path in (other, near)]
    async with runtime.open(
        tool_call_reply(expansion_call("read", str(other))), tool_call_reply(*read), text_reply("Done.")
    ) as process:
        run = await process.run("Read.", agent="reader")
        agent, _, preset = await add_to_scope(process, run)
        assert [each.text for each in await process.tool_results(run)][1:] == ["other.txt", "near.txt"]
    assert agent.paths is not None
    assert agent.paths.read == ("./**", str(other))
    assert all(line in preset for line in template.splitlines())


async def test_adding_a_writable_file_leaves_other_writes_subject_to_approval(runtime: RuntimeFixture):
    """Shows: A093, L006."""
    other = Path("/srv/of-nobody/other.txt")
    runtime.write_agent("writer", FRONT)
    script = [tool_call_reply(expansion_call("write", str(other))), text_reply("Done.")]
    async with runtime.open(
        *script, approval_policy=ApprovalPolicy.ASK, tmp_folder_for=tmp_folder_for
    ) as process:
        run = await process.run("Write.", agent="writer")
        session = await process.store.find(run.session_id)
        before = compute_scope((await process.store.read_preset(session))[0], session, process.context)
        agent, session, preset = await add_to_scope(process, run)
        after = compute_scope(agent, session, process.context)
    assert agent.paths is not None
    assert agent.paths.write == ("/tmp/**", str(other))
    assert "# about rights\n" in preset
    near = f"{process.root}/near.txt"
    for scope, ok in ((before, False), (after, True)):
        assert (scope.check_path(str(other), "write").ok, scope.is_write_preapproved(str(other))) == (ok, ok)
        assert (scope.check_path(near, "write").ok, scope.is_write_preapproved(near)) == (True, False)
        assert (scope.check_path("/tmp/x", "write").ok, scope.is_write_preapproved("/tmp/x")) == (True, True)


@pytest.mark.parametrize("listed", ["[]", "['/tmp/**']", "[docs/**]"])
async def test_adding_a_writable_file_extends_a_write_list_only_by_that_file(
    runtime: RuntimeFixture, listed: str
):
    other = runtime.folder / "other.txt"
    runtime.write_agent("writer", f"paths: {{write: {listed}}}  # mine\n")
    async with runtime.open(
        tool_call_reply(expansion_call("write", str(other))),
        text_reply("Done."),
        approval_policy=ApprovalPolicy.ASK,
    ) as process:
        run = await process.run("Write.", agent="writer")
        agent, session, preset = await add_to_scope(process, run)
        after = compute_scope(agent, session, process.context)
    assert "}  # mine\n" in preset
    assert after.check_path(str(other), "write").ok
    assert not after.check_path(f"{process.root}/near.txt", "write").ok


@pytest.mark.parametrize("command", ["make test", "*", "git *"])
async def test_an_added_command_is_allowed_literally_and_not_as_a_pattern(
    runtime: RuntimeFixture, command: str
):
    """Shows: A093."""
    runtime.write_agent("maker", FRONT)
    async with runtime.open(tool_call_reply(expansion_call("bash", command)), text_reply("Done.")) as process:
        run = await process.run("Make.", agent="maker")
        agent, session, preset = await add_to_scope(process, run)
        scope = compute_scope(agent, session, process.context)
    assert agent.shell_commands is not None
    assert len(agent.shell_commands.allow or ()) == 1
    assert "# about rights\nshell_commands:\n" in preset
    assert scope.check_command_preapproved("make test").ok is (command == "make test")
    assert not scope.check_command_preapproved("git push").ok
