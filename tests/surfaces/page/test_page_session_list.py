"""The list of conversations on the page: grouped, marked, found, and everything that one does to a conversation."""

from pathlib import Path

from page_fixture import BrowserPage, PageDaemon
from playwright.async_api import Locator

from retinue.testing.replies import text_reply


async def rows(window: BrowserPage, **group: str) -> list[str]:
    """The conversations of a group, from the top."""
    found = window("group", **group).locator('[data-test="session-row"]')
    ids: list[str] = []
    for i in range(await found.count()):
        session = await found.nth(i).get_attribute("data-session")
        assert session is not None
        ids.append(session)
    return ids


async def menu(window: BrowserPage, session: str, verb: str) -> None:
    """What the menu of a row offers: it is there for who points at the row."""
    row = window("session-row", session=session)
    await row.hover()
    await row.locator('[data-test="row-menu"]').click()
    await row.locator(f'[data-test="{verb}"]').click()


async def colour(window: BrowserPage, within: Locator) -> tuple[str, str]:
    """What an agent's mark is drawn with, and on."""
    mark = within.locator(".agent-mark").first
    return tuple(
        await mark.evaluate("each => [getComputedStyle(each).color, getComputedStyle(each).backgroundColor]")
    )


async def test_conversations_stand_below_their_agents_each_with_a_colour_and_a_mark(daemon: PageDaemon):
    """Shows: C083, C084."""
    daemon.write_agent("gardener", "description: Looks after plants.\n")
    theirs = {
        agent: [await daemon.create_session(agent) for _ in range(2)]
        for agent in ("general", "oracle", "gardener")
    }
    async with daemon.open_page() as window:
        seen: dict[str, tuple[str, str]] = {}
        for agent, made in theirs.items():
            group = window("group", agent=agent)
            for each in made:
                inside = group.locator(f'[data-session="{each["session_id"]}"]')
                await window.expect(inside).to_have_count(1)
            seen[agent] = await colour(window, group)
            await window.open_session(made[0]["session_id"])
            await window.expect("current-agent").to_have_text(agent.capitalize())
            assert await colour(window, window("agent-switcher")) == seen[agent]
        assert len(set(seen.values())) == 3
        await window.expect(window("group", agent="oracle").locator("header .agent-mark svg")).to_have_count(
            1
        )
        await window.expect(window("group", agent="gardener").locator("header .agent-mark")).to_have_text("G")
        await window.page.emulate_media(color_scheme="dark")
        assert await colour(window, window("group", agent="oracle")) != seen["oracle"]


async def test_pinned_conversations_stand_first_the_latest_pin_on_top(daemon: PageDaemon):
    """Shows: C019, C085."""
    made = [(await daemon.create_session("explorer"))["session_id"] for _ in range(3)]
    async with daemon.open_page() as window:
        for session in made[:2]:
            await menu(window, session, "pin")
            await window.expect(
                window("group", agent="pinned").locator(f'[data-session="{session}"]')
            ).to_have_count(1)
        assert (await rows(window, agent="pinned"))[:2] == [made[1], made[0]]
        assert made[0] not in await rows(window, agent="explorer")
        await window.expect(window("group").first).to_have_attribute("data-agent", "pinned")
        await window.page.reload()
        await window.expect("session-row", session=made[0]).to_be_visible()
        assert (await rows(window, agent="pinned"))[:2] == [made[1], made[0]]
        for session in made[:2]:
            assert (await daemon.call_api("GET", f"/sessions/{session}"))["pinned_at"]
            await menu(window, session, "pin")
            await window.expect(
                window("group", agent="explorer").locator(f'[data-session="{session}"]')
            ).to_have_count(1)
            assert (await daemon.call_api("GET", f"/sessions/{session}"))["pinned_at"] is None


async def test_a_search_finds_names_and_last_words(daemon: PageDaemon):
    named = await daemon.create_session("planner", name="Quince jelly")
    spoken = await daemon.create_session("planner")
    task = daemon.script_task("Name a stone fruit.", text_reply("The mirabelle is one."))
    await daemon.send_message(spoken["session_id"], task)
    async with daemon.open_page() as window:
        await window("search").fill("quince")
        await window.expect("session-row").to_have_count(1)
        await window.expect("session-row", session=named["session_id"]).to_be_visible()
        await window("search").fill("mirabelle")
        await window.expect("session-row", session=spoken["session_id"]).to_be_visible()
        await window.expect("session-row").to_have_count(1)
        await window("search").fill("no such thing anywhere")
        await window.expect("no-matches").to_be_visible()
        await window("search").press("Escape")
        await window.expect("session-row", session=named["session_id"]).to_be_visible()


async def test_a_new_session_with_an_agent_is_opened_and_not_pinned(daemon: PageDaemon):
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
    made = await daemon.call_api("GET", "/sessions?agent=baker")
    assert len(made) == 3
    assert all(each["pinned_at"] is None for each in made)


async def test_another_agent_is_switched_to_and_the_current_one_is_marked(daemon: PageDaemon):
    """Shows: C087, C089."""
    mine = await daemon.create_session("researcher", name="Of the researcher")
    theirs = await daemon.create_session("reviewer", name="Of the reviewer")
    async with daemon.open_page() as window:
        await window.open_session(mine["session_id"])
        await window("agent-switcher").click()
        await window.expect("agent-choice", agent="researcher").to_have_attribute("aria-current", "true")
        assert await window("agent-choice").locator("xpath=self::*[@aria-current]").count() == 1
        await window("agent-choice", agent="reviewer").click()
        await window.expect("title").to_have_text("Of the reviewer")
        await window.expect("current-agent").to_have_text("Reviewer")
        await window.expect("agent-switcher").to_have_attribute("data-agent", "reviewer")
        await window.expect(
            window("session-row", session=theirs["session_id"]).locator("[aria-current=page]")
        ).to_have_count(1)
        await window.expect(window("group", agent="reviewer")).to_have_class("group here")
        assert await window.page.locator(".group.here").count() == 1


async def test_a_conversation_is_renamed_cleared_deleted_and_brought_back(daemon: PageDaemon):
    """Shows: C086."""
    session = await daemon.create_session("executor")
    task = daemon.script_task("Say something to forget.", text_reply("Forget me."))
    await daemon.send_message(session["session_id"], task)
    where = f"/sessions/{session['session_id']}"
    async with daemon.open_page() as window:
        await window.open_session(session["session_id"])
        await menu(window, session["session_id"], "rename")
        await window("name").fill("A better name")
        await window("name").press("Enter")
        await window.expect("title").to_have_text("A better name")
        await window.expect(
            window("session-row", session=session["session_id"]).locator(".session-title")
        ).to_have_text("A better name")
        assert (await daemon.call_api("GET", where))["name"] == "A better name"

        await window.expect("said-agent").to_have_count(1)
        await menu(window, session["session_id"], "clear")
        await window("clear-yes").click()
        await window.expect("empty-conversation").to_be_visible()
        await window.expect("said-agent").to_have_count(0)
        assert await daemon.call_api("GET", f"{where}/entries") == []

        await window.click_menu("delete")
        await window.expect("session-row", session=session["session_id"]).to_have_count(0)
        await window.expect(window("toast").last).to_contain_text("A better name was deleted")
        assert not Path(session["path"]).exists()
        await window("toast-action").click()
        await window.expect("title").to_have_text("A better name")
        await window.expect("session-row", session=session["session_id"]).to_be_visible()
        assert Path(session["path"]).exists()


async def test_esc_keeps_the_old_name_and_an_empty_one_takes_it_away(daemon: PageDaemon):
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


async def test_what_others_do_to_the_list_is_seen_without_a_reload(daemon: PageDaemon):
    session = await daemon.create_session("general", name="Before")
    async with daemon.open_page() as window:
        row = window("session-row", session=session["session_id"])
        await window.expect(row).to_be_visible()
        await daemon.call_api("PATCH", f"/sessions/{session['session_id']}", {"name": "After"})
        await window.expect(row.locator(".session-title")).to_have_text("After")
        await daemon.call_api("DELETE", f"/sessions/{session['session_id']}")
        await window.expect(row).to_have_count(0)
