"""Await plain and ``async`` methods alike."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["result_of"]


async def result_of(method: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of an ``async`` method on this loop, or of a plain one in a thread.

    ``SystemExit`` and ``KeyboardInterrupt`` are re-raised as ``RuntimeError``.
    """
    try:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        value = await _in_thread(method, arguments)
        return await value if inspect.isawaitable(value) else value
    except (SystemExit, KeyboardInterrupt) as error:  # raised in a task, they would end the event loop
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def _in_thread(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a function in a daemon thread: unlike an executor's thread, a hanging one does not block process exit."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not future.done():  # it may have been cancelled
            future.set_result(value) if error is None else future.set_exception(error)

    def work() -> None:
        value, failed = None, None
        try:
            value = function(*arguments)
        except BaseException as error:
            failed = RuntimeError(str(error)) if isinstance(error, StopIteration) else error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failed)

    threading.Thread(target=work, name="environment-method", daemon=True).start()
    return await future
