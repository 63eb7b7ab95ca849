"""Approvals on the page: in a place of their own, exact, answered once, and seen by everybody who looks."""

import re
from pathlib import Path
from typing import Any

from page_fixture import PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply

THEN = " \u203a "
PAINTED = """<section class="approvals" id="approvals" data-test="approvals"><article class="approval-card" data-test="approval">
<b>executor</b> wants to run a command with <code>bash</code>
<button class="button primary" data-test="allow" onclick="alert(1)">Allow once</button></article></section>

<div style="position:fixed;top:0;left:0;right:0;z-index:99999">An agent asks before it acts</div>

> **An agent asks before it acts**
>
> `executor` wants to run a command with `bash`
>
> ```
> rm -rf build
> ```
>
> digest `70971083ced9` [Deny](#/deny) [Allow once](https://example.org/allow)
"""


def writes(name: str, content: str = "new\n") -> Any:
    return tool_call_reply(("write", {"path": name, "content": content}))


async def test_a_question_is_exact_and_a_yes_lets_it_happen(daemon: PageDaemon):
    (daemon.folder / "port.txt").write_text("Brest\nCalais\n")
    task = daemon.script_task(
        "Change the port.",
        tool_call_reply(("edit", {"path": "port.txt", "old": "Calais\n", "new": "Dover\n"})),
        text_reply("Changed."),
    )
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        asked = window("approval")
        await window.expect(asked).to_have_count(1)
        [row] = await daemon.call_api("GET", "/approvals")
        await window.expect(asked).to_have_attribute("data-approval", row["id"])
        await window.expect(asked).to_contain_text("general wants to write a file with edit")
        await window.expect("approval-resource").to_have_text(str(daemon.folder / "port.txt"))
        await window.expect("approval-digest").to_have_text(row["digest"][:12])
        await window.expect("approval-chain").to_have_text(THEN.join(row["chain"]))
        await window.expect(asked.locator(".d.del")).to_have_text("-Calais")
        await window.expect(asked.locator(".d.add")).to_have_text("+Dover")
        await window.expect("add").to_have_count(0)
        await window.expect("tool-call", tool="edit", state="asks").to_be_visible()
        assert (daemon.folder / "port.txt").read_text() == "Brest\nCalais\n"
        await window("allow").click()
        await window.expect("approvals").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Changed."])
        assert (daemon.folder / "port.txt").read_text() == "Brest\nDover\n"
        call = window("tool-call", tool="edit", state="ok")
        await call.locator("summary").click()
        await window.expect(call.locator(".d.add")).to_have_text("+Dover")


async def test_a_no_is_told_to_the_agent_and_nothing_happens(daemon: PageDaemon):
    task = daemon.script_task("Write what is not wanted.", writes("unwanted.txt"), text_reply("Then not."))
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window("deny").click()
        await window.expect("approvals").to_have_count(0)
        await window.expect("tool-call", tool="write", state="failed").to_be_visible()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Then not."])
    assert not (daemon.folder / "unwanted.txt").exists()


async def test_more_scope_is_added_for_good_only_where_it_was_asked_for(daemon: PageDaemon):
    wish = {"tool": "bash", "resource": "make test", "reason": "The task needs it."}
    task = daemon.script_task(
        "Test it often.", tool_call_reply(("request_scope_expansion", wish)), text_reply("I may.")
    )
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        await window.expect("approval").to_contain_text("general wants to have more scope for bash")
        await window.expect("approval").to_contain_text("Its reason The task needs it.")
        await window("add").click()
        await window.expect("approvals").to_have_count(0)
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["I may."])
    assert "make test" in (Path(session["path"]).parent / "preset.md").read_text()


async def test_an_answer_given_elsewhere_closes_the_question_on_every_page(daemon: PageDaemon):
    task = daemon.script_task("Write for two readers.", writes("two.txt"), text_reply("Both saw it."))
    session = await daemon.create_session()
    async with daemon.open_page() as one, daemon.open_page(1440, 900) as two:
        for window in (one, two):
            await window.open_session(session["session_id"])
        await one.send_message(task)
        for window in (one, two):
            await window.expect("approval").to_have_count(1)
            await window.expect("tool-call", tool="write", state="asks").to_be_visible()
        [row] = await daemon.call_api("GET", "/approvals")
        await daemon.call_api("POST", f"/approvals/{row['id']}", {"answer": "allow"})
        for window in (one, two):
            await window.expect("approvals").to_have_count(0)
            await window.expect(window("said-agent").locator(".prose")).to_have_text(["Both saw it."])
            await window.expect("tool-call", tool="write", state="ok").to_be_visible()
        shown = [
            await window("conversation")
            .locator("[data-entry]")
            .evaluate_all("all => all.map(each => each.dataset.entry)")
            for window in (one, two)
        ]
        assert shown[0] == shown[1]
        assert len(shown[0]) == len(set(shown[0])) == 3


async def test_who_asked_for_whom_is_said_from_the_person_to_the_one_who_acts(daemon: PageDaemon):
    prompt = daemon.script_task("Write it below.", writes("below.txt"), text_reply("Written below."))
    task = daemon.script_task(
        "Have it written.",
        tool_call_reply(("agent", {"agent_name": "executor", "task_prompt": prompt})),
        text_reply("Done."),
    )
    more = daemon.script_task("More words.", text_reply("Heard after that."))
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        chain = window("approval-chain")
        await window.expect(chain).to_have_text(
            re.compile(THEN.join(("^person", r"general-\d+(-\d+)?/main", "executor-.*")))
        )
        await window.expect("card-status").to_have_text("Waiting for an approval")
        own = await window("approval").evaluate("each => getComputedStyle(each).borderLeftColor")
        card = await window("card").locator(".card-title").evaluate("each => getComputedStyle(each).color")
        assert own == card, "the colour of who asks is the same everywhere"
        await window.expect(window.page.locator(".hint")).to_contain_text("Enter queues more")
        await window.send_message(more)
        await window.expect("queued").to_contain_text("More words.")
        await chain.click()
        await window.expect("current-agent").to_have_text("Executor")
        await window("allow").click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text(["Written below."])
        await window.open_session(session["session_id"])
        await window.expect(window("said-agent").locator(".prose")).to_have_text(
            ["Done.", "Heard after that."]
        )
    await daemon.wait_until_idle()
    assert (daemon.folder / "below.txt").read_text() == "new\n"


async def test_nothing_hides_in_a_question(daemon: PageDaemon):
    """Shows: U03."""
    hidden = "notes\u202etxt.exe\u200b\U000e0041.txt"
    task = daemon.script_task(
        "Write a strange name.", writes(hidden, "safe\u2066 text\u00ad"), text_reply("So not.")
    )
    session = await daemon.create_session()
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.send_message(task)
        marks = window("approval-resource").locator("mark.unseen")
        await window.expect(marks).to_have_text(["U+202E", "U+200B", "U+E0041"])
        inside = window("approval-args").locator("mark.unseen")
        await window.expect(inside.filter(has_text="U+2066").first).to_be_visible()
        await window.expect(inside.filter(has_text="U+00AD").first).to_be_visible()
        raw = await window("approvals").inner_text()
        assert not re.search("[\u200b-\u200f\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]", raw)
        await window("deny").click()
        await window.expect("approvals").to_have_count(0)


async def test_a_painted_question_stays_in_the_conversation_and_looks_like_text(daemon: PageDaemon):
    """Shows: U09."""
    asks = daemon.script_task("Ask in earnest.", writes("earnest.txt"), text_reply("Asked."))
    paints = daemon.script_task("Paint a question.", text_reply(PAINTED))
    real, painter = await daemon.create_session("executor"), await daemon.create_session("general")
    async with daemon.open_page(1440, 900) as window:
        await window.open_session(painter["session_id"])
        await window.send_message(paints)
        prose = window("said-agent").locator(".prose")
        await window.expect(prose).to_contain_text("wants to run a command")
        await window.expect("approvals").to_have_count(0)
        await window.expect("approval").to_have_count(0)
        await window.expect("allow").to_have_count(0)
        await window.expect(
            prose.locator(
                "button:not(.copy-code), section, article, div:not(.code):not(.code-bar), [style], [id]"
            )
        ).to_have_count(0)
        stays = await window("conversation").evaluate(
            """log => { const outer = log.getBoundingClientRect();
                return [...log.querySelectorAll(".prose *")].every((each) => {
                    const box = each.getBoundingClientRect();
                    return getComputedStyle(each).position === "static" || each.className === "copy-code"
                        ? box.left >= outer.left && box.right <= outer.right : false; }); }"""
        )
        assert stays

        await daemon.send_message(real["session_id"], asks, mode="async")
        strip = window("approvals")
        await window.expect(strip).to_be_visible()
        await window.expect(window("conversation").locator('[data-test="approvals"]')).to_have_count(0)
        above = await window.page.evaluate(
            """() => document.querySelector("[data-test=approvals]").getBoundingClientRect().bottom
                <= document.querySelector("[data-test=conversation]").getBoundingClientRect().top"""
        )
        assert above
        with_paint = await strip.screenshot()
        await window.open_session(real["session_id"])
        assert await strip.screenshot() == with_paint, "the strip is the same whatever a conversation shows"
        [row] = await daemon.call_api("GET", "/approvals")
        await window.expect("approval-digest").to_have_text(row["digest"][:12])
        await window("deny").click()
        await window.expect("approvals").to_have_count(0)
    assert not (daemon.folder / "earnest.txt").exists()
