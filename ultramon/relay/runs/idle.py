"""Finds contexts that make requests and get nowhere, and asks them to hand over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ultramon.errors import AgentNotFoundError
from ultramon.system.wording import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.relay.runs.run import Run
    from ultramon.relay.runs.start import StartedContext
    from ultramon.relay.workspace import RelayWorkspace

_LOOK_SECONDS = 0.5


@dataclass(slots=True)
class _Watched:
    """What was seen of one context.

    Attributes:
        fingerprint: Of its working tree when it did something last; None outside of git.
        looked_at: When its state was read last.
        measured_at: Of the last reading.
        request_count: Requests since it did something last.
        done_count: Tasks that it had completed then.
        is_asked: Whether it was asked to hand over: once is enough.
    """

    fingerprint: str | None
    looked_at: float = 0.0
    measured_at: float | None = None
    request_count: int = 0
    done_count: int = 0
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class IdleContexts:
    """Watches the contexts of a run.

    Attributes:
        run: The run.
        fingerprint: Called with a working tree; returns what changes with its content, None where
            nothing can be said.
    """

    run: Run
    fingerprint: Callable[[RelayWorkspace], str | None]
    _watched: dict[str, _Watched] = field(default_factory=dict, init=False)

    def look(self, context: StartedContext) -> None:
        """Ask a context to hand over that for so many requests has completed and changed nothing.

        Called at each look at its process. Requests between two looks count as one.

        Raises:
            StateError: The store refused.
        """
        most, agent_id = self.run.choices.idle_requests, context.agent_id
        if not most or self.run.is_single:
            return
        seen = self._watched.setdefault(agent_id, _Watched(context.record.fingerprint))
        now = time.monotonic()
        if seen.is_asked or now - seen.looked_at < _LOOK_SECONDS:
            return
        seen.looked_at = now
        state = self.run.view.state(agent_id)
        if state is None or not state.active or state.measured_at == seen.measured_at:
            return
        seen.measured_at = state.measured_at
        seen.request_count += 1
        if state.tasks_completed > seen.done_count:
            seen.done_count, seen.request_count = state.tasks_completed, 0
        if seen.request_count < most:
            return
        # Asked rarely: git looks at every file.
        fingerprint = self.fingerprint(self.run.workspace_of(context.record))
        seen.request_count = 0
        if fingerprint is None or fingerprint != seen.fingerprint:
            seen.fingerprint = fingerprint
            return
        try:
            self.run.fleet.request_return(agent_id, self.run.choices.grace_seconds)
        except AgentNotFoundError:
            return  # it ends at this moment
        seen.is_asked = True
        number = context.record.number
        made = plural(most, "request")
        self.run.tell(f"context {number} made {made} and did nothing: it is asked to hand over")
