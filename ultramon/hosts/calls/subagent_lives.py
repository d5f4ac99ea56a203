"""The lives of a session's subagents: how they are launched, end, and come back to their launcher.

Standard library only. Hosts report less of a subagent than of a session, and not always its end:
what is missing is taken from its transcript.
"""

from __future__ import annotations

from ultramon.errors import InvalidAgentIdError, StateError
from ultramon.hosts.calls.readings import END_WAIT_SECONDS
from ultramon.hosts.transcripts.records import OVERFLOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.calls.called_agent import CalledAgent
    from ultramon.hosts.calls.child_ends import ChildEnds
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.readings import Readings
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent, LaunchedSubagent, ReturnedSubagent
    from ultramon.hosts.transcripts.records import LastReading
    from ultramon.state.record import StateRecord


class Subagents:
    """The subagents that one hook call has to do with.

    Args:
        event: What the host reports.
        store: Where the agents are.
        readings: The transcripts behind this call.
        called: The agent of the call: a subagent itself, or the launcher of some.
    """

    def __init__(
        self, event: HookEvent, store: HookStore, readings: Readings, called: CalledAgent
    ) -> None:
        self._event = event
        self._store = store
        self._readings = readings
        self._called = called

    def start(self) -> None:
        """Begin the subagent that is called, or continue one that had ended."""
        self._called.update(lambda agent: agent.resume())

    def end(self) -> HostedAgent | None:
        """End the subagent that is called; return it as stored, None when there is none.

        Raises:
            StateError: One of the states could not be stored.
        """
        if self._called.parent_id is None:
            return None

        def change(agent: HostedAgent, reading: LastReading) -> None:
            agent.take_last(reading)
            if reading.error == OVERFLOW:
                agent.end("failed", "request failed", reading.error)
            agent.end("completed", "")

        check = self._readings.check_end
        agent = self._called.update_with_reading(change, check, create=False)
        if agent is not None:
            self.give_back_tasks(agent)
        return agent

    def give_back_tasks(self, child: HostedAgent) -> None:
        """Leave to the session what a subagent that ended has not finished.

        Raises:
            StateError: One of the states could not be stored.
        """
        if child.record.tasks:
            from ultramon.hosts.calls.task_list import give_back

            give_back(self._store, self._called.session_id, child.record)

    def end_all(self, session: HostedAgent) -> None:
        """End those that a session which has ended left behind."""
        own_id, pid = self._called.agent_id, session.record.pid
        for session_id in (own_id, *session.memory.predecessors):
            reported_id = self._event.session_id if session_id == own_id else session_id
            for child_id in self._store.children(session_id):
                child = self._store.find(child_id)
                if child is None or not child.active or child.session_id != reported_id:
                    continue
                # A session that was cleared may have been resumed in another process.
                if session_id == own_id or child.pid == pid:
                    name = child_id.removeprefix(f"{session_id}.")
                    self._end_child(child_id, self._readings.of_child(name, reported_id))

    def end_returned(self, returned: ReturnedSubagent) -> ChildEnds | None:
        """End a subagent that came back without an event of its own: it failed, or was stopped.

        A person may type a prompt that says so; then the subagent's transcript must say the same.

        Returns:
            The report for its launcher; None when the subagent is not known.
        """
        try:
            child_id = self._called.child_id(returned.subagent_id)
        except InvalidAgentIdError:
            return None
        child = self._store.find(child_id)
        if child is None:
            return None
        if child.active:
            if returned.error is None:
                # A prompt reports that it ended; how is in its transcript, which may still be
                # written.
                reading = self._readings.wait_until(
                    _shows_end, END_WAIT_SECONDS, returned.subagent_id
                )
            else:
                reading = self._readings.look(returned.subagent_id)
                reading.error = reading.error or returned.error or None
            self._readings.report_problem(self._called.agent_id)
            if _shows_end(reading):
                self._end_child(child_id, reading)
            # A tool's own result, which no person can type, needs no second witness.
            elif returned.is_success:
                self._complete_child(child_id, reading)
        else:
            self._take_late_reply(child, returned.subagent_id)
        if not returned.has_text:
            self._store.update(child_id, _note_empty_return, create=False)
        from ultramon.hosts.calls.child_ends import ChildEnds

        return ChildEnds(self._store, child_id, is_empty=not returned.has_text)

    def _take_late_reply(self, child: StateRecord, subagent_id: str) -> None:
        """Take a last reply that the host wrote only after it had reported the end."""
        reading = self._readings.look(subagent_id)
        self._readings.report_problem(self._called.agent_id)
        report, known = reading.report, self._store.hosted(child).memory.last_reply_at
        if report is None or known == report.at:
            return
        self._store.update(child.agent_id, lambda agent: agent.take_last(reading), create=False)

    def _end_child(self, child_id: str, reading: LastReading) -> None:
        """End a subagent that the host ended without an event of its own."""
        self._store.update(
            child_id, lambda agent: agent.end_by(reading, "session ended"), create=False
        )

    def _complete_child(self, child_id: str, reading: LastReading) -> None:
        def complete(agent: HostedAgent) -> None:
            agent.take(reading.report, reading.place)
            agent.end("completed", "")

        self._store.update(child_id, complete, create=False)

    def announce_end(self, child: HostedAgent) -> None:
        """Leave the end of a subagent to the next call of its launcher, if it is worth that."""
        from ultramon.hosts.calls.child_ends import expect, is_notable

        record = child.record
        if record.parent_id is None or not is_notable(child):
            return
        try:
            self._store.update(
                record.parent_id, lambda agent: expect(agent, record), create=False, journals=False
            )
        except StateError as error:
            self._store.fail(self._called.agent_id, f"its end is not reported: {error}")

    def introduce(self, launched: LaunchedSubagent) -> None:
        """Take a subagent's model and task from the result of the tool that launched it."""

        def change(agent: HostedAgent) -> None:
            agent.record.parent_id = self._called.agent_id
            if agent.record.model is None and launched.model:
                agent.set_model(launched.model)
            if launched.task is not None:
                agent.record.label = None  # at its start only its type was known
                agent.begin_task(launched.task)

        self._change_child(launched.subagent_id, change)

    def observe(self, subagent_id: str) -> None:
        """Take the last reading of a subagent that may have made the call; no agent is warned."""
        reading = self._readings.look(subagent_id)
        self._change_child(subagent_id, lambda agent: agent.take(reading.report, reading.place))

    def _change_child(self, subagent_id: str, change: Callable[[HostedAgent], object]) -> None:
        """Change a subagent of the agent that is called, whose beginning no hook may have seen."""
        called = self._called

        def ensure_and_change(agent: HostedAgent) -> None:
            if agent.record.generation == 0:
                agent.start(self._event.session_id, called.agent_id, self._event.cwd)
            change(agent)

        try:
            self._store.update(called.child_id(subagent_id), ensure_and_change)
        except (InvalidAgentIdError, StateError) as error:
            self._store.fail(called.agent_id, f"its subagent: {error}")


def _note_empty_return(agent: HostedAgent) -> None:
    # A prompt that a person typed ends no subagent.
    if not agent.record.active:
        agent.memory.returned_no_text = True


def _shows_end(reading: LastReading) -> bool:
    signs = (reading.error, reading.stop_reason, reading.stopped_at)
    return any(sign is not None for sign in signs)
