"""A conversation on the page: sending, words as they come, what tools did, and what a person types."""

from typing import Any

from retinue.testing.replies import reply


async def test_words_stream_in_and_stay_as_they_were_saved(house: Any):
    words = " ".join(f"word{i}" for i in range(40))
    task = house.plays("Count the words.", reply(words, pace=0.02))
    session = await house.session()
    async with house.opened() as window:
        await window.goes(session["session_id"])
        await window.page.evaluate(
            """() => { window.lengths = []; new MutationObserver(() => {
                const now = document.querySelector("[data-test=streaming] .prose")?.textContent.length;
                if (now && now !== window.lengths.at(-1)) window.lengths.push(now);
            }).observe(document.body, { childList: true, subtree: true, characterData: true }); }"""
        )
        await window.says(task)
        await window.see("said-agent").to_have_count(1)
        await window.see(window("said-agent").locator(".prose")).to_have_text(words)
        await window.see("streaming").to_have_count(0)
        lengths = await window.page.evaluate("window.lengths")
        assert len(lengths) > 5
        assert lengths == sorted(lengths)
        await window.see(window("said-user").locator(".typed")).to_have_text(task)
        await window.see("pending").to_have_count(0)
