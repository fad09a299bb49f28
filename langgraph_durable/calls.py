"""Call a function of the user's, sync or async, without holding up the loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any


async def call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn`: awaited if it is async, in a thread with this task's context if it is not."""
    if _is_async(fn):
        return await fn(*args, **kwargs)
    result = await asyncio.to_thread(_call, fn, args, kwargs)
    return await result if inspect.isawaitable(result) else result


def _is_async(fn: Callable[..., Any]) -> bool:
    inner = fn
    while isinstance(inner, partial):
        inner = inner.func
    if isinstance(inner, FunctionType) and inner.__code__.co_flags & inspect.CO_COROUTINE:
        return True  # the common case: `inspect` takes ten times as long
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return fn(*args, **kwargs)
    except StopIteration as stop:
        # A future can't carry StopIteration: Python 3.11 would leave it pending for ever.
        raise RuntimeError("the function raised StopIteration") from stop
