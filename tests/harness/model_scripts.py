"""What fake models answer, depending on how far a conversation has come and on which agent asks."""

import asyncio
from collections.abc import Sequence

from retinue.testing.fake_model_server import CapturedRequest, Script
from retinue.testing.replies import FakeResponse


def reply_by_turn(*replies: FakeResponse) -> Script:
    """Answer every conversation with these replies in turn; the last reply repeats."""

    def script(request: CapturedRequest) -> FakeResponse:
        return replies[min(request.reply_count, len(replies) - 1)]

    return script


def script_with_worker(main: Sequence[FakeResponse], worker: FakeResponse) -> Script:
    """Answer the main agent in turn, and a worker only when the main agent has replied to the started worker.

    If the worker were faster, its result would be announced one turn earlier.
    """
    main_has_replied = asyncio.Event()

    async def script(request: CapturedRequest) -> FakeResponse:
        if is_from_worker(request):
            await main_has_replied.wait()
            return worker
        if request.reply_count:
            main_has_replied.set()
        else:
            main_has_replied.clear()
        return main[min(request.reply_count, len(main) - 1)]

    return script


def is_from_worker(request: CapturedRequest) -> bool:
    """Return True if a run that `sessions_spawn` started sent the request."""
    return "You are a worker agent" in request.body["messages"][0]["content"]


def is_from_helper(request: CapturedRequest) -> bool:
    """Return True if an agent whose prompt is "You help." sent the request."""
    return "You help." in request.body["messages"][0]["content"]
