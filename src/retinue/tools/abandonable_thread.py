"""Run work that may never return in its own thread."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def run_in_own_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run work in a new daemon thread and return its future.

    In a thread pool, a few calls that hang would block all others, and the process could not exit.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def run_work() -> None:
        result, error = None, None
        try:
            result = context.run(work)
        except BaseException as exception:  # noqa: BLE001  (raised again in the waiting task)
            error = exception
        # On a closed loop nothing waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_result, future, result, error)

    threading.Thread(target=run_work, name="retinue-tool", daemon=True).start()
    return future


def _set_result(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot carry StopIteration: the waiting task would never wake.
        future.set_exception(RuntimeError(f"the function raised {error!r}"))
    else:
        future.set_exception(error)
