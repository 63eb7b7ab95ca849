"""The session list of the page: groups, marks, search, and what can be done to a session."""

from pathlib import Path

import pytest
from page_fixture import BrowserPage, PageDaemon
from playwright.async_api import Locator

from retinue.testing.replies import text_reply


async def row_ids(window: BrowserPage, **group: str) -> list[str]:
    """The ids of the sessions of a group, from the top."""
    group_rows = window("group", **group).locator('[data-test="session-row"]')
    ids: list[str] = []
    for i in range(await group_rows.count()):
        session = await group_rows.nth(i).get_attribute("data-session")
        assert session is not None
        ids.append(session)
    return ids


async def choose_in_menu(window: BrowserPage, session: str, action: str) -> None:
    """Choose an action from the menu of a row, which appears when the mouse is over it."""
    row = window("session-row", session=session)
    await row.hover()
    await row.locator('[data-test="row-menu"]').click()
    await row.locator(f'[data-test="{action}"]').click()


async def mark_colours(window: BrowserPage, container: Locator) -> tuple[str, str]:
    """The foreground and background colour of an agent's mark."""
    mark = container.locator(".agent-mark").first
    return tuple(
        await mark.evaluate("mark => [getComputedStyle(mark).color, getComputedStyle(mark).backgroundColor]")
    )


async def test_sessions_are_grouped_by_agent_and_each_agent_has_its_colour_and_mark(daemon: PageDaemon):
    """Shows: C083, C084."""
    daemon.write_agent("gardener", "description: Looks after plants.\n")
    sessions = {
        agent: [await daemon.create_session(agent) for _ in range(2)]
        for agent in ("general", "oracle", "gardener")
    }
    async with daemon.open_page() as window:
        colours: dict[str, tuple[str, str]] = {}
        for agent, agent_sessions in sessions.items():
            group = window("group", agent=agent)
            for session in agent_sessions:
                row = group.locator(f'[data-session="{session["session_id"]}"]')
                await window.expect(row).to_have_count(1)
            colours[agent] = await mark_colours(window, group)
            await window.open_session(agent_sessions[0]["session_id"])
            await window.expect("current-agent").to_have_text(agent.capitalize())
            assert await mark_colours(window, window("agent-switcher")) == colours[agent]
        assert len(set(colours.values())) == 3
        await window.expect(window("group", agent="oracle").locator("header .agent-mark svg")).to_have_count(
            1
        )
        await window.expect(window("group", agent="gardener").locator("header .agent-mark")).to_have_text("G")
        await window.page.emulate_media(color_scheme="dark")
        assert await mark_colours(window, window("group", agent="oracle")) != colours["oracle"]


async def test_pinned_sessions_come_first_with_the_latest_pin_on_top(daemon: PageDaemon):
    """Shows: C019, C085."""
    sessions = [(await daemon.create_session("explorer"))["session_id"] for _ in range(3)]
    async with daemon.open_page() as window:
        for session in sessions[:2]:
            await choose_in_menu(window, session, "pin")
            await window.expect(
                window("group", agent="pinned").locator(f'[data-session="{session}"]')
            ).to_have_count(1)
        assert (await row_ids(window, agent="pinned"))[:2] == [sessions[1], sessions[0]]
        assert sessions[0] not in await row_ids(window, agent="explorer")
        await window.expect(window("group").first).to_have_attribute("data-agent", "pinned")
        await window.page.reload()
        await window.expect("session-row", session=sessions[0]).to_be_visible()
        assert (await row_ids(window, agent="pinned"))[:2] == [sessions[1], sessions[0]]
        for session in sessions[:2]:
            assert (await daemon.call_api("GET", f"/sessions/{session}"))["pinned_at"]
            await choose_in_menu(window, session, "pin")
            await window.expect(
                window("group", agent="explorer").locator(f'[data-session="{session}"]')
            ).to_have_count(1)
            assert (await daemon.call_api("GET", f"/sessions/{session}"))["pinned_at"] is None


async def test_the_search_finds_names_and_the_latest_text(daemon: PageDaemon):
    named = await daemon.create_session("planner", name="Quince jelly")
    with_reply = await daemon.create_session("planner")
    task = daemon.script_task("Name a stone fruit.", text_reply("The mirabelle is one."))
    await daemon.send_message(with_reply["session_id"], task)
    async with daemon.open_page() as window:
        await window("search").fill("quince")
        await window.expect("session-row").to_have_count(1)
        await window.expect("session-row", session=named["session_id"]).to_be_visible()
        await window("search").fill("mirabelle")
        await window.expect("session-row", session=with_reply["session_id"]).to_be_visible()
        await window.expect("session-row").to_have_count(1)
        await window("search").fill("no such thing anywhere")
        await window.expect("no-matches").to_be_visible()
        await window("search").press("Escape")
        await window.expect("session-row", session=named["session_id"]).to_be_visible()


async def test_a_new_session_is_opened_and_not_pinned(daemon: PageDaemon):
    """Shows: C088."""
    daemon.write_agent("baker", "description: Bakes.\n")
    async with daemon.open_page() as window:
        await window("new-session").click()
        await window("new-filter").fill("baker")
        await window("new-with", agent="baker").click()
        await window.expect("empty-conversation").to_be_visible()
        await window.expect("current-agent").to_have_text("Baker")
        await window.expect("composer").to_be_focused()
        await window("group", agent="baker").locator('[data-test="group-new"]').click()
        await window.expect(
            window("group", agent="baker").locator('[data-test="session-row"]')
        ).to_have_count(2)
        await window("agent-switcher").click()
        await window("agent-new", agent="baker").click()
        task = daemon.script_task("Bake a roll.", text_reply("One roll."))
        await window("composer").fill(task)
        await window("send").click()
        await window.expect(window("said-agent").locator(".prose")).to_have_text("One roll.")
        await window.expect(
            window("group", agent="baker").locator('[data-test="session-row"]')
        ).to_have_count(3)
    sessions = await daemon.call_api("GET", "/sessions?agent=baker")
    assert len(sessions) == 3
    assert all(session["pinned_at"] is None for session in sessions)


async def test_the_agent_switcher_marks_the_current_agent_and_opens_the_session_of_another(
    daemon: PageDaemon,
):
    """Shows: C087, C089."""
    researcher_session = await daemon.create_session("researcher", name="Of the researcher")
    reviewer_session = await daemon.create_session("reviewer", name="Of the reviewer")
    async with daemon.open_page() as window:
        await window.open_session(researcher_session["session_id"])
        await window("agent-switcher").click()
        await window.expect("agent-choice", agent="researcher").to_have_attribute("aria-current", "true")
        assert await window("agent-choice").locator("xpath=self::*[@aria-current]").count() == 1
        await window("agent-choice", agent="reviewer").click()
        await window.expect("title").to_have_text("Of the reviewer")
        await window.expect("current-agent").to_have_text("Reviewer")
        await window.expect("agent-switcher").to_have_attribute("data-agent", "reviewer")
        await window.expect(
            window("session-row", session=reviewer_session["session_id"]).locator("[aria-current=page]")
        ).to_have_count(1)
        await window.expect(window("group", agent="reviewer")).to_have_class("group here")
        assert await window.page.locator(".group.here").count() == 1


async def test_a_session_is_renamed_cleared_deleted_and_restored(daemon: PageDaemon):
    """Shows: C086."""
    session = await daemon.create_session("executor")
    task = daemon.script_task("Say something to forget.", text_reply("Forget me."))
    await daemon.send_message(session["session_id"], task)
    path = f"/sessions/{session['session_id']}"
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await choose_in_menu(window, session["session_id"], "rename")
        await window("name").fill("A better name")
        await window("name").press("Enter")
        await window.expect("title").to_have_text("A better name")
        await window.expect(
            window("session-row", session=session["session_id"]).locator(".session-title")
        ).to_have_text("A better name")
        assert (await daemon.call_api("GET", path))["name"] == "A better name"

        await window.expect("said-agent").to_have_count(1)
        await choose_in_menu(window, session["session_id"], "clear")
        await window("clear-yes").click()
        await window.expect("empty-conversation").to_be_visible()
        await window.expect("said-agent").to_have_count(0)
        assert await daemon.call_api("GET", f"{path}/entries") == []

        await window.click_menu("delete")
        await window.expect("consequence").to_contain_text("can be restored for 30 days")
        await window("delete-yes").click()
        await window.expect("session-row", session=session["session_id"]).to_have_count(0)
        await window.expect(window("toast").last).to_contain_text("A better name was deleted")
        assert not Path(session["path"]).exists()
        await window("toast-action").click()
        await window.expect("title").to_have_text("A better name")
        await window.expect("session-row", session=session["session_id"]).to_be_visible()
        assert Path(session["path"]).exists()


def files_with(word: str, home: Path) -> list[str]:
    """Return the files of the home that contain a word."""
    found = [path for path in home.rglob("*") if path.is_file() and word.encode() in path.read_bytes()]
    return sorted(path.name for path in found)


@pytest.mark.parametrize("action", ["delete", "clear"])
async def test_removing_the_words_everywhere_leaves_them_in_no_file_of_the_home_or_the_browser(
    daemon: PageDaemon, action: str
):
    word = f"quixotic{action}"
    session = await daemon.create_session("executor", name=f"To {action}")
    session_id = session["session_id"]
    task = daemon.script_task(f"Say {word}.", text_reply(f"I say {word}."))
    await daemon.send_message(session_id, task)
    async with daemon.open_page() as window:
        await window.open_session(session_id)
        await window("composer").fill(f"An unsent {word}")
        await window.click_menu(action)
        await window.expect(f"{action}-dialog").to_contain_text("Also remove the words everywhere")
        await window.expect("purge").not_to_be_checked()
        await window.expect(f"{action}-yes").to_have_text(action.capitalize())
        await window("purge").check()
        await window.expect("consequence").to_contain_text("This cannot be undone")
        await window.expect(f"{action}-yes").to_have_text(f"{action.capitalize()} for good")
        await window("remove-no").click()
        assert files_with(word, daemon.home)

        await window.click_menu(action)
        await window.expect("purge").not_to_be_checked()
        await window("purge").check()
        await window(f"{action}-yes").click()
        if action == "delete":
            await window.expect(window("toast").last).to_contain_text("To delete was deleted for good")
            await window.expect("toast-action").to_have_count(0)
            await window.expect("session-row", session=session_id).to_have_count(0)
        else:
            await window.expect("empty-conversation").to_be_visible()
            await window.expect("title").to_have_text("To clear")
        await window.page.reload()
        await window.expect("sessions").to_be_visible()
        assert files_with(word, daemon.home) == []
        assert word not in await window.page.evaluate("JSON.stringify(localStorage)")


async def test_clearing_for_good_names_a_branch_that_may_have_copies(daemon: PageDaemon):
    session = await daemon.create_session("executor", name="To clear a branch")
    session_id = session["session_id"]
    task = daemon.script_task("Say quixotic.", text_reply("I say quixotic."))
    await daemon.send_message(session_id, task)
    async with daemon.open_page() as window:
        branch = await daemon.call_api("POST", f"/sessions/{session_id}/branch", {})
        await window.open_session(session_id)
        await window("composer").fill("An unsent quixotic")
        await window.click_menu("clear")
        await window("purge").check()
        await window("clear-yes").click()
        await window.expect(window("toast").last).to_contain_text(branch["key"])
        await window.expect("empty-conversation").to_be_visible()
        await window.page.reload()
        await window.expect("empty-conversation").to_be_visible()
        assert "quixotic" not in await window.page.evaluate("JSON.stringify(localStorage)")


async def test_escape_keeps_the_old_name_and_an_empty_name_removes_it(daemon: PageDaemon):
    session = await daemon.create_session("pair", name="Kept")
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await window.click_menu("rename")
        await window("name").fill("Never mind")
        await window("name").press("Escape")
        await window.expect("title").to_have_text("Kept")
        await window.click_menu("rename")
        await window("name").fill("")
        await window("name").press("Enter")
        await window.expect("title").to_have_text(session["slug"])
    assert (await daemon.call_api("GET", f"/sessions/{session['session_id']}"))["name"] is None


async def test_changes_by_other_clients_appear_without_a_reload(daemon: PageDaemon):
    session = await daemon.create_session("general", name="Before")
    async with daemon.open_page() as window:
        row = window("session-row", session=session["session_id"])
        await window.expect(row).to_be_visible()
        await daemon.call_api("PATCH", f"/sessions/{session['session_id']}", {"name": "After"})
        await window.expect(row.locator(".session-title")).to_have_text("After")
        await daemon.call_api("DELETE", f"/sessions/{session['session_id']}")
        await window.expect(row).to_have_count(0)
