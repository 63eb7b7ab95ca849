"""A conversation on the page: sending, streaming, tool calls, drafts, branches and errors."""

import re
from pathlib import Path

import pytest
from page_fixture import BrowserPage, OpenPageDaemon, PageDaemon

from retinue.testing.replies import http_error, text_reply, tool_call_reply

MARKDOWN = """# Tides

A *short* text with **weight**, `code` and [a link](https://example.org/tides).

- one
- two

| Port | Height |
|---|---:|
| Brest | 6.1 m |

```python
def high(tide):
    return tide > 4
```
"""
DIFF = "--- a/port.txt\n+++ b/port.txt\n@@ -1,2 +1,2 @@\n Brest\n-Calais\n+Dover\n"


async def read_clipboard(window: BrowserPage) -> str:
    return await window.page.evaluate("navigator.clipboard.readText()")


async def test_a_reply_streams_in_and_stays_as_it_was_saved(daemon: PageDaemon):
    reply = " ".join(f"word{i}" for i in range(40))
    task = daemon.script_task("Count the words.", text_reply(reply, pace=0.02))
    async with daemon.open_new_session() as (window, session):
        await window.page.evaluate(
            """() => { window.lengths = []; new MutationObserver(() => {
                const length = document.querySelector("[data-test=streaming] .prose")?.textContent.length;
                if (length && length !== window.lengths.at(-1)) window.lengths.push(length);
            }).observe(document.body, { childList: true, subtree: true, characterData: true }); }"""
        )
        await window.send_message(task)
        await window.expect("said-agent").to_have_count(1)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(reply)
        await window.expect("streaming").to_have_count(0)
        lengths = await window.page.evaluate("window.lengths")
        assert len(lengths) > 5
        assert lengths == sorted(lengths)
        await window.expect(window("said-user").locator(".typed")).to_have_text(task)
        await window.expect("pending").to_have_count(0)
    entries = await daemon.call_api("GET", f"/sessions/{session['session_id']}/entries")
    assert [entry["text"] for entry in entries] == [task, reply]


async def test_markdown_is_rendered_and_code_can_be_copied(daemon: PageDaemon):
    task = daemon.script_task("Tell me of tides.", text_reply(MARKDOWN))
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        prose = window("said-agent").locator(".prose")
        await window.expect(prose.locator("h3")).to_have_text("Tides")
        await window.expect(prose.locator("em")).to_have_text("short")
        await window.expect(prose.locator("li")).to_have_text(["one", "two"])
        await window.expect(prose.locator("td")).to_have_text(["Brest", "6.1 m"])
        link = prose.locator("a")
        await window.expect(link).to_have_attribute("href", "https://example.org/tides")
        await window.expect(link).to_have_attribute("rel", "noopener noreferrer")
        await window.expect(link).to_contain_text("example.org")
        await window("said-agent").locator('[data-test="copy-code"]').click()
        await window.expect("copy-code").to_have_text("Copied")
        assert await read_clipboard(window) == "def high(tide):\n    return tide > 4"
        await window("said-agent").hover()
        await window("said-agent").locator('[data-test="copy"]').click()
        await daemon.wait_until(lambda: _clipboard_has(window, MARKDOWN.strip()))


async def _clipboard_has(window: BrowserPage, text: str) -> bool:
    return (await read_clipboard(window)).strip() == text


async def test_a_question_of_the_agent_is_answered_by_a_click_or_by_a_message(daemon: PageDaemon):
    first_question = tool_call_reply(
        ("ask_user", {"question": "Which colour?\n<b>Mind</b> the wall.", "options": ["red", "blue"]})
    )
    second_question = tool_call_reply(("ask_user", {"question": "And how dark?"}))
    task = daemon.script_task("Paint it.", first_question, second_question, text_reply("Painted."))
    session = await daemon.create_session()
    async with daemon.open_page(390, 800) as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("question").to_contain_text("Which colour?")
        await window.expect("question").to_contain_text("<b>Mind</b> the wall.")
        await window.expect("now").to_contain_text("Waiting for your message")
        await window("option").filter(has_text="blue").click()
        await window.expect("question").to_contain_text("And how dark?")
        await window.expect("option").to_have_count(0)
        await window.expect("composer").to_have_attribute("placeholder", "Waiting for your message")
        await window.send_message("Rather dark.")
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Painted."])
        await window.expect("question").to_have_count(0)
        await window.expect("pending").to_have_count(0)
    entries = await daemon.call_api("GET", f"/sessions/{session['session_id']}/entries")
    assert [entry["text"] for entry in entries if entry["kind"] == "tool_result"] == ["blue", "Rather dark."]
    assert [entry["text"] for entry in entries if entry["kind"] == "message" and entry["role"] == "user"] == [
        task
    ]


async def test_thinking_is_folded(daemon: PageDaemon):
    task = daemon.script_task("Think first.", text_reply("I have.", thinking="Is it this, or is it that?"))
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["I have."])
        thoughts = window("said-agent").locator('[data-test="thinking"]')
        await window.expect(thoughts.locator(".thoughts")).to_be_hidden()
        await thoughts.locator("summary").click()
        await window.expect(thoughts.locator(".thoughts")).to_have_text("Is it this, or is it that?")


async def test_a_tool_call_is_one_line_that_opens_to_its_arguments_and_its_result(daemon: PageDaemon):
    (daemon.folder / "port.txt").write_text("Brest\nCalais\n")
    (daemon.folder / "change.txt").write_text(DIFF)
    task = daemon.script_task(
        "Read of the port.",
        tool_call_reply(
            ("read", {"path": "port.txt"}), ("tell", {"name": "change.txt"}), ("read", {"path": "none.txt"})
        ),
        text_reply("Read."),
    )
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        call = window("tool-call", tool="read", state="ok")
        await window.expect(call).to_contain_text("port.txt")
        await window.expect(call.get_by_text("Calais")).to_be_hidden()
        await call.locator("summary").click()
        await window.expect(call.locator(".inside")).to_contain_text("Calais")
        await call.get_by_label("Copy the arguments").click()
        await daemon.wait_until(lambda: _clipboard_has(window, '{"path":"port.txt"}'))
        diff_call = window("tool-call", tool="tell")
        await diff_call.locator("summary").click()
        await window.expect(diff_call.locator(".d.del")).to_have_text("-Calais")
        await window.expect(diff_call.locator(".d.add")).to_have_text("+Dover")
        await window.expect("tool-call", tool="read", state="failed").to_have_count(1)


async def test_a_draft_is_saved_in_the_session_file_and_restored(daemon: PageDaemon):
    """Shows: A080."""
    session = await daemon.create_session()
    file = Path(session["path"])
    draft = "Half a thought,\nand its second line"
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        async with window.page.expect_response("**/draft") as draft_response:
            await window("composer").press_sequentially("Half a thought,")
            await window("composer").press("Shift+Enter")
            await window("composer").press_sequentially("and its second line")
        assert (await draft_response.value).ok
        await daemon.wait_until(lambda: draft in file.read_text())
        await window.page.reload()
        await window.expect("composer").to_have_value(draft)
    async with daemon.open_page() as other:
        await other.open_session(session["session_id"])
        await other.expect("composer").to_have_value(draft)
        daemon.script_task(draft, text_reply("Whole now."))
        await other("composer").press("Enter")
        await other.expect(other("said-agent").locator(".prose")).to_have_text(["Whole now."])
        await other.expect("composer").to_have_value("")
    assert file.read_text().count("and its second line") == 1


async def test_a_message_sent_during_a_run_is_queued_and_answered_in_turn(daemon: PageDaemon):
    gate = daemon.create_gate("queue")
    first = daemon.script_task(
        "Hold the first.", tool_call_reply(("hold", {"name": "queue"})), text_reply("First is done.")
    )
    second = daemon.script_task("Then the second.", text_reply("Second is done."))
    async with daemon.open_new_session() as (window, _):
        await window.send_message(first)
        await window.expect("tool-call", tool="hold", state="under-way").to_be_visible()
        await window.send_message(second)
        await window.expect("queued").to_contain_text(second)
        await window.expect("said-user").to_have_count(1)
        gate.unlink()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(
            ["First is done.", "Second is done."]
        )
        await window.expect("queued").to_have_count(0)
        await window.expect(window("said-user").locator(".typed")).to_have_text([first, second])


async def test_a_queued_message_can_be_taken_back(daemon: PageDaemon):
    gate = daemon.create_gate("back")
    first = daemon.script_task(
        "Hold while I think.", tool_call_reply(("hold", {"name": "back"})), text_reply("Held.")
    )
    async with daemon.open_new_session() as (window, session):
        await window.send_message(first)
        await window.expect("tool-call", tool="hold", state="under-way").to_be_visible()
        await window.send_message("I should not have said this.")
        await window("queued").get_by_text("Cancel").click()
        await window.expect("queued").to_have_count(0)
        gate.unlink()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Held."])
    await daemon.wait_until_idle()
    assert "should not have" not in Path(session["path"]).read_text()


async def test_a_run_can_be_cancelled(daemon: PageDaemon):
    daemon.create_gate("stop")
    task = daemon.script_task(
        "Hold for ever.", tool_call_reply(("hold", {"name": "stop"})), text_reply("Never said.")
    )
    async with daemon.open_new_session() as (window, session):
        await window.send_message(task)
        await window.expect("tool-call", tool="hold", state="under-way").to_be_visible()
        await window("cancel").click()
        await window.expect("run-ended", status="cancelled").to_be_visible()
        await window.expect("cancel").to_have_count(0)
        await window.expect("ledger-entry").to_have_count(0)
    [run] = await daemon.call_api("GET", f"/runs?session={session['session_id']}")
    assert run["status"] == "cancelled"


async def test_an_interrupted_run_ends_with_a_summary(daemon: PageDaemon):
    gate = daemon.create_gate("pause")
    task = daemon.script_task(
        "Hold until I ask.", tool_call_reply(("hold", {"name": "pause"})), text_reply("So far: held.")
    )
    async with daemon.open_new_session() as (window, _):
        await window.send_message(task)
        await window.expect("tool-call", tool="hold", state="under-way").to_be_visible()
        await window("interrupt").click()
        gate.unlink()
        await window.expect(window("said-agent").locator(".prose").last).to_have_text("So far: held.")
        await window.expect("interrupt").to_have_count(0)


async def test_a_branch_from_a_message_leaves_the_original_session_unchanged(daemon: PageDaemon):
    first_task = daemon.script_task("Say one.", text_reply("One."))
    second_task = daemon.script_task("Say two.", text_reply("Two."))
    branch_task = daemon.script_task("Say another.", text_reply("Another."))
    session = await daemon.create_session(name="Trunk")
    for task in (first_task, second_task):
        await daemon.send_message(session["session_id"], task)
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        first = window("said-agent").first
        await window.expect(first.locator(".prose")).to_have_text(["One."])
        await first.hover()
        await first.locator('[data-test="branch"]').click()
        await window.expect("toast").to_contain_text("branch of Trunk")
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["One."])
        assert session["session_id"] not in window.page.url
        await window.send_message(branch_task)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["One.", "Another."])
        await window("session-row", session=session["session_id"]).locator(".session-open").click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["One.", "Two."])


async def test_branching_at_a_user_message_puts_its_text_into_the_composer(daemon: PageDaemon):
    first_task = daemon.script_task("Say red.", text_reply("Red."))
    second_task = daemon.script_task("Say blue.", text_reply("Blue."))
    daemon.script_task("Say blue, loudly.", text_reply("BLUE."))
    session = await daemon.create_session()
    for task in (first_task, second_task):
        await daemon.send_message(session["session_id"], task)
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window("said-user").last.hover()
        await window("said-user").last.locator('[data-test="branch"]').click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Red."])
        await window.expect("composer").to_have_value("Say blue.")
        await window.send_message("Say blue, loudly.")
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Red.", "BLUE."])
    assert "loudly" not in Path(session["path"]).read_text()


async def test_the_path_of_the_session_file_is_shown_and_can_be_copied(daemon: PageDaemon):
    async with daemon.open_new_session() as (window, session):
        await window.expect("path").to_contain_text("session.md")
        await window("path").locator('[data-test="copy"]').click()
        await daemon.wait_until(lambda: _clipboard_has(window, session["path"]))
    assert Path(session["path"]).is_file()


async def test_an_edit_of_the_session_file_is_shown(daemon: PageDaemon):
    task = daemon.script_task("Say teh word.", text_reply("The wrod."))
    session = await daemon.create_session()
    await daemon.send_message(session["session_id"], task)
    file = Path(session["path"])
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["The wrod."])
        file.write_text(file.read_text().replace("The wrod.", "The word."))
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["The word."])


async def test_a_failed_run_shows_the_error_and_what_to_do(daemon: PageDaemon):
    task = daemon.script_task("Ask with a wrong key.", http_error(401, "this key is not valid"))
    async with daemon.open_new_session() as (window, session):
        await window.send_message(task)
        run_end = window("run-ended", status="failed")
        await window.expect(run_end).to_contain_text(re.compile("Failed: .*key", re.DOTALL))
        await window.expect(run_end).to_contain_text("send the message again")
        await window.expect("session-row", session=session["session_id"]).to_have_attribute(
            "data-status", "idle"
        )


async def test_a_damaged_file_is_reported_where_its_text_ends_until_it_is_repaired(daemon: PageDaemon):
    task = daemon.script_task("Is it safe to delete?", text_reply("Delete everything."))
    session = await daemon.create_session()
    await daemon.send_message(session["session_id"], task)
    file = Path(session["path"])
    intact = file.read_text()
    file.write_text(intact.replace("<!-- agent", "<!--agent"))
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.expect("file-problem").to_contain_text("session.md:6: this line is almost a marker")
        await window.expect("empty-conversation").to_have_count(0)
        file.write_text(intact)
        await window.expect(window("said-agent").locator(".prose")).to_have_text("Delete everything.")
        await window.expect("file-problem").to_have_count(0)


async def test_the_address_of_a_missing_session_shows_that_it_is_gone(daemon: PageDaemon):
    async with daemon.open_page() as window:
        await window.page.evaluate("() => { location.hash = '#/s/no-such-session' }")
        await window.expect("gone").to_be_visible()
        await window("gone").get_by_role("button").click()
        await window.expect("home-form").to_be_visible()


@pytest.mark.parametrize("deleted", [False, True])
async def test_the_page_of_a_missing_session_stays_connected_to_the_daemon(
    own_daemon: OpenPageDaemon, *, deleted: bool
):
    """Deleted elsewhere while it is open, and opened by an address that names no session."""
    async with own_daemon() as daemon:
        await daemon.start()
        session = await daemon.create_session(name="Short-lived")
        async with daemon.open_page() as window:
            await window.open_session(session["session_id"])
            await daemon.call_api("DELETE", f"/sessions/{session['session_id']}")
            await window.expect("gone").to_be_visible()
            if not deleted:
                await window.page.evaluate("location.hash = '#/s/no-such-session'")
                await window.expect("gone").to_be_visible()
            async with window.page.expect_response("**/api/events?*") as stream:
                await window.page.reload()
            assert (await stream.value).status == 200
            await window.expect("gone").to_be_visible()
            other = await daemon.create_session(name="Created later")
            await window.expect("session-row", session=other["session_id"]).to_be_visible()
            await window.expect("lost").to_have_count(0)
            await window.expect("toast").to_have_count(0)
