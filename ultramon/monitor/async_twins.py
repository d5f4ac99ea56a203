"""Async twins of blocking methods: done in a thread, and done whole."""

from __future__ import annotations

from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Owner = TypeVar("Owner")


async def to_its_end(
    call: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Result:
    """Make a blocking call in a thread, to its end even when the task is cancelled meanwhile."""
    import asyncio

    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments, **named))
    cancelled: asyncio.CancelledError | None = None
    # A thread cannot be stopped: a half-made call would start or store behind its caller's back.
    while not running.done():
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled from running.exception()
    return running.result()


def in_thread(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Coroutine[Any, Any, Result]]:
    """Return the async twin of a method."""

    @wraps(method)
    async def run(self: Owner, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        return await to_its_end(partial(method, self), *arguments, **named)

    return run
