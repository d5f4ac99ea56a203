"""How a context waits for its provider, and when another host takes its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ultramon.relay.launchers.outcome import USAGE
from ultramon.relay.runs.context_process import Continuation
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.timestamps import clock_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.relay.launchers.outcome import ProviderLimit
    from ultramon.relay.runs.start import StartedContext

FIRST_LIMIT_PAUSE_SECONDS = 60.0
LONGEST_LIMIT_PAUSE_SECONDS = 900.0
"""Where the provider does not say when its limit ends: doubled each time."""


def continuation(
    context: StartedContext,
    limit: ProviderLimit,
    close: Callable[[], object],
    first_pause_seconds: float = FIRST_LIMIT_PAUSE_SECONDS,
) -> Continuation | None:
    """Return how the session of a context continues once its provider takes requests again.

    None where a usage limit ends the context, for another host is free. One that is free before the
    limit has ended takes over as well.

    Args:
        context: The context.
        limit: What its process met.
        close: Called when the context is over instead.
        first_pause_seconds: The first pause at a limit whose end is not known.
    """
    run, record = context.run, context.record
    now = SYSTEM_CLOCK.now()
    # A bounded exponent: beyond 2**1023 a float overflows.
    pause = first_pause_seconds * 2 ** min(record.parts - 1, 20)
    until = now + min(pause, LONGEST_LIMIT_PAUSE_SECONDS)
    if limit.ends_at is not None and limit.ends_at > now:
        until = limit.ends_at
    # A usage limit lasts hours, a rate limit seconds: only the first is worth another host.
    if limit.kind == USAGE:
        run.launchers.limit(record.agent, until)
        if (other := run.launchers.free_beside(record.agent)) is not None:
            run.tell(
                f"context {record.number} met the usage limit of {record.agent}, which ends "
                f"{clock_time(until, now)}: {other} takes over"
            )
            return None
    ends = clock_time(until, now)
    run.tell(f"context {record.number} waits for the {limit.kind} limit until {ends}")

    def is_over() -> bool:
        if run.is_stopping:
            return True
        if limit.kind != USAGE or run.launchers.free_beside(record.agent) is None:
            return False
        close()
        return True

    # By the wall clock, which runs while the machine is suspended.
    return Continuation(lambda: SYSTEM_CLOCK.now() >= until, is_over, context.resume)
