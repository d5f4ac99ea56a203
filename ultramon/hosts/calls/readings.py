"""Reads the transcript behind one hook call, and waits for what the host is about to write.

Standard library only. The host writes a transcript while its hook runs already: without waiting,
about half of all readings were one call old, all of them up to date within 60 ms.
"""

from __future__ import annotations

import time

from ultramon.hosts.port import (
    PROMPT,
    SESSION_ENDED,
    SUBAGENT_ENDED,
    TOOL_ENDED,
    TOOL_STARTED,
    TOOLS_ENDED,
    WAITING,
)
from ultramon.hosts.transcripts.records import LastReading
from ultramon.hosts.transcripts.tail import MAX_TAIL_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent

    IsDone = Callable[[LastReading], bool]

WAIT_SECONDS = 0.15
"""How long to wait for the reply of a tool call, where it may reach a rung."""
END_WAIT_SECONDS = 0.5
"""How long to wait for the last reply of a turn or a subagent, once: no model waits for that."""
BYTES_PER_TOKEN = 3
"""Of a transcript, at least, so that a large result is never taken for a small one."""
_LOOK_AGAIN_SECONDS = 0.003
_MEASURED = (PROMPT, TOOL_STARTED, TOOL_ENDED, TOOLS_ENDED, WAITING, SESSION_ENDED, SUBAGENT_ENDED)
"""Events that are worth a search for a transcript whose path is not named."""


class BehindError(Exception):
    """The transcript lacks a reply that is worth waiting for, outside of the agent's lock."""

    def __init__(self, is_done: IsDone, seconds: float) -> None:
        self.is_done = is_done
        self.seconds = seconds


class Readings:
    """The transcripts of one hook call.

    Args:
        store: Where the agents are.
        event: The call.
    """

    def __init__(self, store: HookStore, event: HookEvent) -> None:
        self._store = store
        self._files = store.host.transcripts
        self._event = event
        self._problem = ""

    @property
    def path(self) -> str | None:
        """The transcript of the agent that the event is about."""
        event = self._event
        return self._files.transcript_path(event, event.subagent_id, event.session_id)

    def look(self, subagent_id: str | None = None, session_id: str | None = None) -> LastReading:
        """Read the end of a transcript; `report_problem` says what is wrong with the last one.

        Args:
            subagent_id: The host's name of a subagent; None = the agent of the event.
            session_id: The session under which it was written; None = that of the event.
        """
        event = self._event
        is_own = subagent_id is None
        if is_own and event.reading is not None:
            self._problem = ""
            return event.reading
        subagent_id = subagent_id or event.subagent_id
        path = self._files.transcript_path(event, subagent_id, session_id or event.session_id)
        self._problem = ""
        if path is None and is_own and event.kind in _MEASURED:
            path = self._found_path(subagent_id)
        if path is None:
            return LastReading()
        try:
            reading = self._files.read_last_reading(
                path, is_subagent=subagent_id is not None, call_id=event.awaited_id
            )
            if reading.has_given_up:
                self._problem = f"no reply in the last {MAX_TAIL_BYTES >> 20} MB of {path}"
            if is_own and reading.report is not None and reading.report.model is None:
                reading.report.model = event.model
            return reading
        except FileNotFoundError:
            # Before the first reply there is none; when a tool has run there must be one.
            if event.kind in (TOOL_ENDED, TOOLS_ENDED, PROMPT) and event.awaited_id is not None:
                self._problem = f"no transcript {path}"
        except (OSError, ValueError) as error:
            self._problem = f"transcript not read: {error}"
        return LastReading()

    def _found_path(self, subagent_id: str | None) -> str | None:
        """Return a transcript of which the host has not said where it is."""
        name = subagent_id or self._event.session_id
        return self._files.find_transcript(self._store.environ, name)

    def report_problem(self, agent_id: str) -> None:
        """Write to the failure log what was wrong when the transcript was read last."""
        if self._problem:
            self._store.fail(agent_id, self._problem)

    def of_child(self, subagent_id: str, session_id: str) -> LastReading:
        """Read what the host wrote of a subagent last: after a clear in another folder."""
        reading = self.look(subagent_id)
        if reading.report or reading.error or session_id == self._event.session_id:
            return reading
        return self.look(subagent_id, session_id)

    def wait_until(
        self, is_done: IsDone, seconds: float, subagent_id: str | None = None
    ) -> LastReading:
        """Look until a transcript says what is waited for, or the time is over."""
        reading = self.look(subagent_id)
        deadline = time.monotonic() + seconds
        while not is_done(reading) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_SECONDS)
            reading = self.look(subagent_id)
        return reading

    def check_call(self, agent: HostedAgent, reading: LastReading) -> None:
        """Make sure that the reply with the call that has just run cannot be what reaches a rung.

        Raises:
            BehindError: It is not written down yet, and may.
        """
        if self._event.awaited_id and not reading.is_current and self._may_hide(agent, reading):
            raise BehindError(lambda reading: reading.is_current, WAIT_SECONDS)

    def _may_hide(self, agent: HostedAgent, reading: LastReading) -> bool:
        record = agent.record
        if record.generation == 0:
            return record.seq == 0  # else a state was set aside, which must not be done twice
        if reading.report is None or record.measured_at is None:
            # Nothing is known of this window; but what was waited for in vain may never come.
            return not agent.memory.is_lagging
        if agent.must_return:
            return True  # the replies since the request to return are counted
        # The result that was just written may be most of a window.
        return agent.gauge.is_near(reading.report.tokens + reading.bytes_behind // BYTES_PER_TOKEN)

    def check_end(self, agent: HostedAgent, reading: LastReading) -> None:
        """Make sure that a reading is of the reply that the event calls the last one.

        Raises:
            BehindError: It is of an earlier one.
        """
        if self._event.hook_mark and not reading.is_current:
            raise BehindError(lambda reading: reading.is_current, END_WAIT_SECONDS)
        text = self._event.last_text.rstrip()
        before = agent.memory.last_reply_at

        def is_last(reading: LastReading) -> bool:
            said = reading.text.strip()
            is_new = reading.report is not None and reading.report.at != before
            return reading.error is not None or (is_new and bool(said) and text.endswith(said))

        if text and not is_last(reading):
            raise BehindError(is_last, END_WAIT_SECONDS)
