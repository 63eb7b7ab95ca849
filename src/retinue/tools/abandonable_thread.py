"""Work that may never come back, set aside in a thread of its own."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def own_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """A pool would let a few calls that hang hold up everyone else's, and the process could not end before them."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def thread() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as caught:  # noqa: BLE001  (it is raised again, in the task that waits)
            error = caught
        # A closed loop has nobody left to tell.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, future, result, error)

    threading.Thread(target=thread, name="retinue-tool", daemon=True).start()
    return future


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot carry it: whoever waits would wait for ever.
        future.set_exception(RuntimeError(f"it raised {error!r}"))
    else:
        future.set_exception(error)
