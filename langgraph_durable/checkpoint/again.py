"""Try an act of a saver again after an error that passes: every one of them may be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenacity import AsyncRetrying, retry_if_exception
from tenacity.stop import stop_base
from tenacity.wait import wait_base

T = TypeVar("T")


async def again(
    act: Callable[[], Awaitable[T]],
    passes: Callable[[BaseException], bool],
    wait: wait_base,
    stop: stop_base,
) -> T:
    """Return what the act returns; the last error if it doesn't succeed in time.

    The first try goes without tenacity, which takes a tenth of a millisecond: nearly all succeed.
    """
    try:
        return await act()
    except Exception as error:
        if not passes(error):
            raise

    async def once() -> T:  # tenacity wants a coroutine function, and a lambda is none
        return await act()

    trying = AsyncRetrying(retry=retry_if_exception(passes), wait=wait, stop=stop, reraise=True)
    return await trying(once)
