"""A run that waits for its model's server, on the page."""

from page_fixture import OpenPageDaemon

from retinue.testing.fake_model_server import CapturedRequest
from retinue.testing.replies import FakeResponse, http_error, text_reply


async def test_a_run_whose_model_is_down_says_why_it_waits_and_can_be_resumed(own_daemon: OpenPageDaemon):
    is_down = True

    async def reply(_: CapturedRequest) -> FakeResponse:
        return http_error(503, "down for maintenance") if is_down else text_reply("All is well.")

    async with own_daemon() as daemon:
        daemon.write_config(providers={"openai": {"retry_seconds": 0.1}}, limits={"model_wait_seconds": 0.5})
        task = daemon.script_task("Hello.", *[reply] * 100)
        await daemon.start()
        async with daemon.open_new_session() as (window, _):
            await window.send_message(task)
            await window.expect(window("now")).to_contain_text("Waiting for your decision")
            await window.expect(window("now")).to_contain_text("down for maintenance")
            await window.expect(window("now")).to_contain_text("limits.model_wait_seconds")
            await window("open-runs").click()
            await window.expect("run").to_contain_text("Waiting for your decision: Hello.")
            is_down = False
            await window("resume").click()
            await window.expect(window("said-agent").locator(".prose")).to_have_text("All is well.")
