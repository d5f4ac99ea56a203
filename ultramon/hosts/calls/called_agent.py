"""The agent that one hook call is about: its id, and changes to its state by the newest reading.

Standard library only: every hook call loads it.
"""

from __future__ import annotations

from ultramon.hosts import port
from ultramon.hosts.calls.readings import BehindError
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.readings import Readings
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.records import LastReading

    Change = Callable[[HostedAgent, LastReading], None]

_AT_WORK = (port.TOOL_STARTED, port.TOOL_ENDED, port.TOOLS_ENDED, port.PROMPT)


class CalledAgent:
    """The agent of one hook call: a session, or one of its subagents.

    Args:
        event: What the host reports.
        store: Where the agents are.
        readings: The transcripts behind this call.

    Attributes:
        agent_id: Its id.
        session_id: Its session; the same for the main agent.
        parent_id: None for the main agent.

    Raises:
        InvalidAgentIdError: The session's or the subagent's id may not become a file name.
    """

    def __init__(self, event: HookEvent, store: HookStore, readings: Readings) -> None:
        self._event = event
        self._store = store
        self._readings = readings
        self.session_id = check_agent_id(store.agent_of(event.session_id))
        self.agent_id = self.session_id
        self.parent_id: str | None = None
        if event.subagent_id is not None:
            self.agent_id = self.child_id(event.subagent_id)
            self.parent_id = self.session_id

    def child_id(self, subagent_id: str) -> str:
        """Return a subagent's id, which it keeps when its session is cleared and renamed.

        Raises:
            InvalidAgentIdError: It may not become a file name.
        """
        name = check_agent_id(subagent_id)
        own = check_agent_id(f"{self.session_id}.{name}")
        if self._store.is_known(own):
            return own
        session = self._store.find(self.session_id)
        before = [] if session is None else self._store.hosted(session).memory.predecessors
        adopted = (check_agent_id(f"{one}.{name}") for one in before)
        return next(filter(self._store.is_known, adopted), own)

    def update(self, change: Callable[[HostedAgent], None]) -> HostedAgent | None:
        """Change the agent, whose beginning no hook may have seen.

        Raises:
            StateError: The state could not be stored.
        """

        def ensure_and_change(agent: HostedAgent) -> None:
            self.ensure(agent)
            change(agent)

        return self._store.update(self.agent_id, ensure_and_change)

    def update_with_reading(
        self,
        change: Change,
        check: Callable[[HostedAgent, LastReading], None],
        *,
        create: bool = True,
    ) -> HostedAgent | None:
        """Change the agent by the newest reading; wait for a newer one outside of its lock.

        Args:
            change: Changes the agent.
            check: Raises `BehindError` where a newer reading is worth waiting for. It asks the
                state under the lock, so that a call that need not wait decodes it once.
            create: Whether an agent without a state gets one.

        Raises:
            StateError: The state could not be stored.
        """
        reading = self._readings.look()
        model = reading.report and (reading.report.requested_model or reading.report.model)
        if model and reading.window_tokens is not None:
            self._store.learn_window(model, reading.window_tokens)
        if reading.plan_limits:
            self._store.learn_plan(reading.plan_limits)

        def follow_and_change(agent: HostedAgent, reading: LastReading) -> None:
            agent.follow_compaction(reading)
            change(agent, reading)
            # Behind the reading, which names the model that was asked.
            agent.observe_window(reading.refused_above_tokens)

        def change_if_current(agent: HostedAgent) -> None:
            check(agent, reading)
            follow_and_change(agent, reading)

        try:
            try:
                return self._store.update(self.agent_id, change_if_current, create=create)
            except BehindError as behind:
                newer = self._readings.wait_until(behind.is_done, behind.seconds)
            return self._store.update(
                self.agent_id, lambda agent: follow_and_change(agent, newer), create=create
            )
        finally:
            self._readings.report_problem(self.agent_id)

    def look(self) -> LastReading:
        """Return the newest reading; note what was wrong with the transcript."""
        reading = self._readings.look()
        self._readings.report_problem(self.agent_id)
        return reading

    def ensure(self, agent: HostedAgent) -> None:
        """Fill the state of an agent whose beginning no hook has seen."""
        event, record = self._event, agent.record
        if record.generation == 0:
            agent.start(event.session_id, self.parent_id, event.cwd)
        elif not (record.active or agent.memory.successor_id) and event.kind in _AT_WORK:
            agent.resume()  # another hook made it continue, or its return was not reported
        elif record.active and event.kind == port.PROMPT and not agent.keeps_reminders:
            agent.resume()  # after a kill: the start of this process may be handled later
        if event.cwd:
            record.cwd = event.cwd
        if self.parent_id is not None:
            agent.name(event.subagent_type)
        path = self._readings.path
        if path:
            agent.memory.transcript_path = path
