"""Controls in every state: readable in both themes, and not covered by each other on a phone."""

from typing import Any

import pytest
from page_contrast import CONTROLS, FIND_OVERLAPS, MEASURE_CONTROLS
from page_fixture import BrowserPage, PageDaemon

from retinue.testing.replies import text_reply, tool_call_reply

STATES: dict[str, list[str]] = {
    "default": [],
    "hover": ["hover"],
    "focused": ["focus", "focus-visible", "focus-within"],
    "active": ["hover", "active"],
}
MAX_LAYOUT_CHECKS = 60
DISABLE_BUTTONS = "for (const each of document.querySelectorAll('button')) each.disabled = true"


async def force_state(window: BrowserPage, pseudo_classes: list[str]) -> None:
    """Give every control these pseudo-classes, and what contains it too, as the browser would."""
    await window.page.evaluate(
        """controls => { for (const each of document.querySelectorAll("[data-forced]")) delete each.dataset.forced;
        for (const each of document.querySelectorAll(controls))
            for (let at = each; at; at = at.parentElement) at.dataset.forced = ""; }""",
        CONTROLS,
    )
    devtools: Any = await window.page.context.new_cdp_session(window.page)
    for domain in ("DOM", "CSS"):
        await devtools.send(f"{domain}.enable")
    root = (await devtools.send("DOM.getDocument"))["root"]["nodeId"]
    found = await devtools.send("DOM.querySelectorAll", {"nodeId": root, "selector": "[data-forced]"})
    for node in found["nodeIds"]:
        await devtools.send("CSS.forcePseudoState", {"nodeId": node, "forcedPseudoClasses": pseudo_classes})


async def open_approval(daemon: PageDaemon, window: BrowserPage, name: str) -> None:
    """Open a session with a pending approval; the session list shows that it waits."""
    task = daemon.script_task(
        f"Write {name}.",
        tool_call_reply(("read", {"path": "held.py"}), text="I look."),
        tool_call_reply(("write", {"path": f"{name}.txt", "content": "x"})),
        text_reply("Written."),
    )
    session = await daemon.create_session(name=f"A session with a rather long name: {name}")
    await window.open_session(session["session_id"])
    await window.send_message(task)
    await window.expect(window("approval").first).to_be_visible()


async def deny_approvals(daemon: PageDaemon) -> None:
    for row in await daemon.call_api("GET", "/approvals"):
        await daemon.call_api("POST", f"/approvals/{row['id']}", {"answer": "deny"})
    await daemon.wait_until_idle()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", ["conversation", "dialog", "removal", "menu"])
async def test_controls_are_readable_in_every_state(daemon: PageDaemon, scheme: str, screen: str):
    async with daemon.open_page(1440, 1000, color_scheme=scheme) as window:
        await open_approval(daemon, window, f"{screen}-{scheme}")
        if screen == "dialog":
            await window.page.keyboard.press("Escape")
            await window.page.keyboard.press("n")
            await window.expect("new-dialog").to_be_visible()
        elif screen == "removal":
            await window.click_menu("delete")
            await window("purge").check()
        elif screen == "menu":
            await window.page.locator(".head").locator('[data-test="session-menu-open"]').click()
        else:
            await window("open-runs").click()
            await window.expect(window("run").first).to_be_visible()
        for state, pseudo_classes in STATES.items():
            await force_state(window, pseudo_classes)
            measured = await window.page.evaluate(MEASURE_CONTROLS)
            assert len(measured) > 20
            assert [each for each in measured if each["contrast"] < each["minimum"]] == [], state
        await force_state(window, [])
        await window.page.evaluate(DISABLE_BUTTONS)
        for state in ([], ["hover"]):
            await force_state(window, state)
            measured = await window.page.evaluate(MEASURE_CONTROLS)
            assert any("disabled" in each["what"] for each in measured)
            assert [each for each in measured if each["contrast"] < each["minimum"]] == []
        await deny_approvals(daemon)


async def test_no_control_covers_another_or_a_mark_on_a_phone(daemon: PageDaemon):
    async with daemon.open_page(390, 844, has_touch=True, is_mobile=True) as window:
        await open_approval(daemon, window, "phone")
        await assert_nothing_overlaps(window)
        await window("drawer").click()
        await window.expect("sidebar").to_be_in_viewport()
        waiting = window("session-row", status="waiting")
        await window.expect(waiting.first.locator(".dot.waiting")).to_be_visible()
        await window.expect(waiting.first.locator('[data-test="row-menu"]')).to_be_visible()
        await assert_nothing_overlaps(window)
        await window.page.keyboard.press("Escape")
        for name in ("open-runs", "open-inbox"):
            await window(name).click()
            await window.expect("panel").to_be_visible()
            await assert_nothing_overlaps(window)
            await window("panel-close").click()
        await deny_approvals(daemon)
        await window.expect("approvals").to_have_count(0)
        await assert_nothing_overlaps(window)


async def assert_nothing_overlaps(window: BrowserPage) -> None:
    """Check the settled page: a list that has just changed measures its rows before it places them."""
    found = await window.page.evaluate(FIND_OVERLAPS)
    for _ in range(MAX_LAYOUT_CHECKS):
        if not found["overlaps"]:
            break
        await window.page.wait_for_timeout(50)
        found = await window.page.evaluate(FIND_OVERLAPS)
    assert found["count"] >= 3
    assert found["overlaps"] == []
