"""What each event does to the agents, and how it is answered: the same for every host.

Standard library only. Nothing is injected at the end of a turn, where the agent would begin another
one each time, nor around a compaction, where it would be dropped or change the summary; but for one
line at the start that follows it, which the host adds behind the summary.
"""

from __future__ import annotations

import os

from ultramon.backends.local.inbox_flags import is_raised, raise_flag
from ultramon.errors import StateError
from ultramon.hosts import port
from ultramon.hosts.calls.called_agent import CalledAgent
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED, LateStartError
from ultramon.hosts.calls.readings import BehindError, Readings
from ultramon.hosts.installed_choices import AGENT, AUDIENCES, BOTH, NO_AUDIENCE
from ultramon.hosts.transcripts.records import OVERFLOW
from ultramon.system import compact_json
from ultramon.system.files import check_one_name, read_private_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.calls.child_ends import ChildEnds
    from ultramon.hosts.calls.enforcement import Enforcement
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.notices import Delivery
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.calls.subagent_lives import Subagents
    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.records import LastReading
    from ultramon.state.stored_plan import TaskReport

PERSON = "person"
"""``by`` of a request that a person made: a session that no relay leads is shown only these."""
HAND_OVER_REQUEST = (
    "The user asks through ultramon that you hand your work over now: finish the step you are in,"
    " run `ultramon task handoff --notes -` with what a successor needs to know on its standard"
    " input, then end your turn."
)
PROJECT_FOLDER = ".ultramon"
"""Of a project; ``<host>.json`` in it holds the project's audience."""


class HookCall:
    """One call of a hook.

    Args:
        event: What the host reports.
        store: Where the agents are.

    Raises:
        InvalidAgentIdError: The session's or the subagent's id may not become a file name.
    """

    def __init__(self, event: HookEvent, store: HookStore) -> None:
        self._event = event
        self._store = store
        self._readings = Readings(store, event)
        self._called = CalledAgent(event, store, self._readings)
        self.agent_id = self._called.agent_id
        self._is_warning = False
        self._deliveries: list[Delivery] = []
        self._child_ends: ChildEnds | None = None
        self._ended: HostedAgent | None = None
        self._enforcement: Enforcement | None = None
        self._is_over = False

    def _subagents(self) -> Subagents:
        # Most calls have to do with none.
        from ultramon.hosts.calls.subagent_lives import Subagents

        return Subagents(self._event, self._store, self._readings, self._called)

    def answer(self) -> bytes:
        """Do what the event asks for; return what to print for the host, often nothing.

        Raises:
            StateError: The state could not be stored.
        """
        act = _ACTS.get(self._event.kind)
        text = act(self) if act else None
        if self._ended is not None and self._warns():
            self._subagents().announce_end(self._ended)
        if self._store.in_relay and (end := self._end_spent()) is not None:
            return end
        host, enforcement = self._store.host, self._enforcement
        if self._is_over:
            return host.dialect.write_end(self._event, NOT_RETURNED)
        if enforcement is not None and enforcement.stop_reason:
            return host.dialect.write_end(self._event, enforcement.stop_reason)
        if enforcement is not None and enforcement.user_note:
            return host.dialect.write_user_note(self._event, enforcement.user_note)
        return host.dialect.write_answer(self._event, text) if text else b""

    def _end_spent(self) -> bytes | None:
        """Return what ends a context of a relay that has spent its reserve; None = it has not."""
        from ultramon.hosts.calls.spending import REASON, SPENT, Spending

        event, dialect = self._event, self._store.host.dialect
        spending = Spending(event, self._store, self._called, self._readings)
        try:
            if not spending.is_over():
                return None
            if not dialect.ends_turns:
                spending.stop_host()
                return None
            if not event.can_end:
                return None
            self._store.update(self.agent_id, lambda agent: agent.end("cancelled", SPENT))
        except (StateError, OSError, ValueError) as error:
            self._store.fail(self.agent_id, f"what it spends is not counted: {error!r}")
            return None
        return dialect.write_end(event, REASON)

    def acknowledge(self) -> None:
        """End the notices, ends and the warning in the answer, once the host has it.

        They are repeated where a hook ends before; none is lost.
        """
        for delivery in self._deliveries:
            delivery.acknowledge()
        ends, enforcement = self._child_ends, self._enforcement
        if ends is not None and not ends.has_claimed:
            ends = None
        if enforcement is not None and not enforcement.stop_reason:
            enforcement = None
        if not self._is_warning and ends is None and enforcement is None:
            return

        def acknowledge(agent: HostedAgent) -> None:
            agent.has_warned()
            if ends is not None:
                ends.acknowledge(agent)
            if enforcement is not None:
                enforcement.acknowledge(agent)

        try:
            self._store.update(self.agent_id, acknowledge, create=False, journals=False)
        except StateError as error:
            self._store.fail(self.agent_id, f"the warning will be repeated: {error}")

    def put_back(self) -> None:
        """Leave the notices in the answer to the next call: the host did not get it.

        Ends and a warning come again by themselves, since the process that was to print them ended.
        """
        for delivery in self._deliveries:
            delivery.put_back()

    # --- sessions

    def _start(self) -> str | None:
        """Begin a session, or continue it, after its end or after its compaction.

        Returns:
            After a compaction a text for the agent: the summary may repeat earlier warnings, and
            lack what a person has pinned. Where the answer is not read, the next call has it.
        """
        event = self._event

        def change(agent: HostedAgent) -> None:
            # What the transcript says of the model is better: it keeps the suffix [1m].
            agent.set_model(agent.record.model or event.model)
            if event.source == port.COMPACT:
                agent.compacted(event.name)
                if event.can_answer:
                    del agent.memory.is_compacted
                return
            agent.resume()
            if event.source == port.RESUME:
                # Its conversation holds an earlier prompt already.
                agent.count_prompt()
            agent.resolve_limit()  # another process may be set to another window
            if agent.record.measured_at is None and event.reading is not None:
                pass  # nothing is read but what the events bring along
            elif agent.record.measured_at is None:
                # A forked session copies the lines of the other one: they are no readings of this.
                # It may be known all the same: the status line is sometimes drawn first.
                agent.memory.readings_after = self._store.now
            elif event.source != port.RESUME:
                agent.gauge.begin_epoch(port.CLEAR)
            if event.source == port.CLEAR:
                agent.memory.is_cleared = True
            if event.tokens is not None:
                agent.gauge.take(event.tokens, 0, self._store.now)
            if event.prompt:
                # The host reports the prompt beside the start, and waits for neither first.
                self._begin_prompt(agent)
            else:
                agent.wait()

        agent = self._called.update(change)
        self._follow_clear(agent)
        if event.source == port.RESUME:
            # A power cut may have taken the flag of what was queued durably.
            raise_flag(self._store.directory.path, self.agent_id)
        if agent is None or event.source != port.COMPACT or not event.can_answer:
            return None
        return self._give_back(agent)

    def _give_back(self, agent: HostedAgent) -> str:
        """Return what an agent reads after its compaction, empty for nothing."""
        audience = self._audience()
        parts = []
        if self._store.installed.pins and audience != NO_AUDIENCE:
            from ultramon.hosts.calls.compaction_text import write_pins

            project = self._store.host.dialect.project(self._store.environ) or agent.record.cwd
            parts.append(write_pins(self._store, agent, project))
        if audience in (AGENT, BOTH):
            from ultramon.hosts.calls.warning_text import write_compaction

            parts.append(write_compaction(self._store.now))
        return "\n".join(part for part in parts if part)

    def _follow_clear(self, agent: HostedAgent | None) -> None:
        """Take over from the session before a clear; tried again at the next call if it fails."""
        if agent is None or not agent.memory.is_cleared:
            return
        from ultramon.hosts.calls.succession import succeed

        try:
            succeed(self._store, agent.record)
        except StateError as error:
            self._store.fail(self.agent_id, f"the session before the clear: {error}")

    def _end(self) -> None:
        """End a session, and its subagents unless it was cleared."""
        reason = self._event.reason

        def finish(agent: HostedAgent, reading: LastReading) -> None:
            if agent.record.active:
                agent.take(reading.report, reading.place)
            if reading.error == OVERFLOW:
                agent.note_failure(reading.error)
            elif self._event.error:
                agent.note_failure(self._event.error)
            cuts_turn = self._event.may_cut_turn and agent.has_open_turn
            agent.finish(reason, cuts_turn=cuts_turn)

        # Some hosts end with a turn whose last reply they are about to write.
        check = self._readings.check_end
        agent = self._called.update_with_reading(finish, check, create=False)
        if agent is None or reason == port.CLEAR:
            return
        self._subagents().end_all(agent)

    def _start_subagent(self) -> None:
        self._subagents().start()

    def _end_subagent(self) -> None:
        self._ended = self._subagents().end()

    # --- turns

    def _wait(self) -> None:
        """Note that the turn is over, or that the host waits for a person."""

        def change(agent: HostedAgent, reading: LastReading) -> None:
            self._called.ensure(agent)
            agent.take_last(reading)
            agent.wait(self._event.waits_for)
            if self._event.error and self._called.parent_id is not None:
                # No other event follows: SubagentStop is for those that came to an end.
                reading.error = reading.error or self._event.error
                agent.end_by(reading, "")
                self._ended = agent
            elif self._event.error is not None:
                agent.note_failure(self._event.error)

        self._called.update_with_reading(change, self._readings.check_end)

    def _before_compaction(self) -> str | None:
        event, reading = self._event, self._called.look()

        def change(agent: HostedAgent) -> None:
            agent.take(reading.report, reading.place)
            agent.compacting(is_automatic=event.is_automatic)

        self._called.update(change)
        return self._store.installed.handoff_note

    def _after_compaction(self) -> None:
        """Begin an epoch: the last reading in the transcript is still of the old window."""
        self._called.update(lambda agent: agent.compacted(self._event.name))

    def _before_call(self) -> None:
        """Note a tool that begins to run, maybe for long; the reading is that of its call."""

        def change(agent: HostedAgent, reading: LastReading) -> None:
            agent.check_start(self._event.call_id)
            self._called.ensure(agent)
            agent.tool_started(self._event.call_id)
            if reading.is_current:
                agent.memory.is_lagging = False
            agent.take(reading.report, reading.place)

        try:
            self._called.update_with_reading(change, self._readings.check_call)
        except LateStartError:
            return

    def _after_call(self) -> str:
        event = self._event
        if event.launched is not None:
            self._subagents().introduce(event.launched)
        for subagent_id in event.candidates:
            self._subagents().observe(subagent_id)
        if event.tasks is not None:
            return self._after_task_call(event.tasks)
        return self._measure(lambda agent: agent.end_call(event.call_id), is_call=True)

    def _after_task_call(self, report: TaskReport) -> str:
        """Take what a tool call changed in the host's task list into the plans."""
        from ultramon.hosts.calls.task_list import TaskSharing

        sharing = TaskSharing(self._store, self._called.session_id, self.agent_id, report)

        def change(agent: HostedAgent) -> None:
            agent.end_call(self._event.call_id)
            sharing.apply(agent)

        text = self._measure(change, is_call=True)
        sharing.hand_on()
        return text

    def _after_calls(self) -> str:
        event, enforce = self._event, self._store.installed.enforce
        if not event.can_answer and enforce is None and event.reading is None:
            return ""  # there is nothing but a turn that could be ended
        # With a reading it is the one event that reports the calls of a reply.
        is_call = event.reading is not None
        return self._measure(lambda agent: agent.begin_turn(""), is_call=is_call)

    def _before_permission(self) -> str:
        """End a turn at a call that an agent asks for after its time to return is over."""
        if self._store.installed.enforce is None:
            return ""
        # The host asks for the calls of one reply at once, and each is denied: another of them may
        # end the turn before this one, or while it is measured.
        self._is_over = self._has_ended()
        if not self._is_over:
            self._measure(lambda agent: None, is_call=False)
            own = self._enforcement
            self._is_over = own is not None and not own.stop_reason and self._has_ended()
        return ""

    def _has_ended(self) -> bool:
        from ultramon.hosts.calls.enforcement import has_ended

        record = self._store.find(self.agent_id)
        return record is not None and has_ended(self._store.hosted(record))

    def _nudge(self) -> None:
        """Keep a turn ended that the host would continue by itself."""
        record = self._store.find(self.agent_id)
        self._is_over = record is not None and self._store.hosted(record).memory.turn_ended

    def _prompt(self) -> str:
        return self._measure(self._begin_prompt, is_call=False)

    def _begin_prompt(self, agent: HostedAgent) -> None:
        from ultramon.state.prompt_text import GOAL_HEADING

        prompt = self._event.prompt
        # It would name every context of a relay.
        agent.begin_turn(prompt.removeprefix(GOAL_HEADING))
        agent.keep_prompt(prompt)

    def _measure(self, act: Callable[[HostedAgent], None], *, is_call: bool) -> str:
        """Take the reading; return what the agent is to read: notices, ends, then a warning."""
        event = self._event
        audience = self._audience()
        can_end = event.can_end and audience in (AGENT, BOTH)
        if not event.can_answer:
            audience = NO_AUDIENCE
        warns = audience in (AGENT, BOTH)
        warning = ""
        ends: list[str] = []
        must_end = is_compacted = False
        if event.returned is not None:
            returned = self._subagents().end_returned(event.returned)
            self._child_ends = returned if warns else None
            if returned is not None and not event.can_answer:
                self._ended = returned.child()  # its launcher reads of it with a later call

        def change(agent: HostedAgent, reading: LastReading) -> None:
            nonlocal warning, ends, must_end, is_compacted
            self._called.ensure(agent)
            act(agent)
            agent.memory.is_lagging = event.awaited_id is not None and not reading.is_current
            agent.take(reading.report, reading.place)
            must_end = can_end and self._must_end(agent, reading)
            if must_end:
                return  # it reads nothing more
            is_compacted = audience != NO_AUDIENCE and agent.memory.is_compacted
            if is_compacted:
                del agent.memory.is_compacted
            ends = self._claim_ends(agent) if warns else []
            message_id = reading.report.message_id if reading.report is not None else None
            if warns and agent.must_warn(is_call=is_call, message_id=message_id):
                from ultramon.hosts.calls.warning_text import write_warning

                warning = write_warning(self._store, agent, self._readings.path)
                self._is_warning = True
            elif warns:
                warning = self._show_request(agent)

        agent = None
        try:
            agent = self._called.update_with_reading(change, self._readings.check_call)
        except StateError as error:
            # One that is locked, unsafe or of a newer version is kept, and warned of, by another.
            if not isinstance(error.__cause__, OSError):
                raise
            self._store.fail(self.agent_id, str(error))
            self._is_warning = False
            self._child_ends, ends, must_end = None, [], False
            warning = self._warn_unstored() if warns else ""
        self._follow_clear(agent)
        if must_end and agent is not None:
            return self._end_turn(agent)
        lines = [] if agent is None or audience == NO_AUDIENCE else self._notices(agent)
        if agent is not None and is_compacted and (text := self._give_back(agent)):
            lines.insert(0, text)
        # What waited is older than the warning.
        return "\n".join([*lines, *ends, *([warning] if warning else [])])

    def _show_request(self, agent: HostedAgent) -> str:
        """Return the sentence for an agent that a relay or a person asks to hand over, once."""
        request = self._store.directory.get_request(self.agent_id)
        # A request to an earlier process of this id is not this one's.
        if request is None or request.get("generation") != agent.record.generation:
            return ""
        if agent.memory.shown_request == request.get("requestId"):
            return ""
        agent.memory.shown_request = request.get("requestId")
        if self._store.in_relay:
            return self._store.installed.critical_note or ""
        return HAND_OVER_REQUEST if request.get("by") == PERSON else ""

    def _must_end(self, agent: HostedAgent, reading: LastReading) -> bool:
        """Return whether an agent that was asked to return has continued for too long."""
        if not agent.must_return:
            return False
        from ultramon.hosts.calls import enforcement

        self._enforcement = enforcement.Enforcement(
            self._event, self._store, self._called, self._readings.path
        )
        return self._enforcement.is_due(agent, reading)

    def _end_turn(self, agent: HostedAgent) -> str:
        """End the agent's turn; return the warning for it where that did not work."""
        assert self._enforcement is not None
        ended = self._enforcement.end()
        if ended is None:
            if not self._event.can_answer:
                return ""
            from ultramon.hosts.calls.warning_text import write_warning

            return write_warning(self._store, agent, self._readings.path)
        if self._called.parent_id is not None:
            self._ended = ended
            try:
                self._subagents().give_back_tasks(ended)
            except StateError as error:
                # The host must have the answer all the same: the state says that it ended.
                self._store.fail(self.agent_id, f"its tasks stay with it: {error}")
        return ""

    def _claim_ends(self, agent: HostedAgent) -> list[str]:
        """Return how subagents ended, where no call has reported it yet; most calls have none.

        Of others than the one that has just come back the agent's own state says so.
        """
        if self._child_ends is None:
            if not agent.memory.pending_ends:
                return []
            from ultramon.hosts.calls.child_ends import ChildEnds

            self._child_ends = ChildEnds(self._store)
        return self._child_ends.claim(agent)

    def _warn_unstored(self) -> str:
        """Return the warning where the system stores nothing: the transcript alone decides."""
        from ultramon.hosts.calls.warning_text import write_unstored_warning
        from ultramon.state.record import StateRecord

        reading = self._readings.look()
        record = self._store.find(self.agent_id) or StateRecord(self.agent_id)
        try:
            self._readings.check_call(self._store.hosted(record), reading)
        except BehindError as behind:
            reading = self._readings.wait_until(behind.is_done, behind.seconds)
        agent_ids = (self.agent_id, self._called.parent_id)
        return write_unstored_warning(
            self._store, self._event, agent_ids, self._readings.path, reading.stopped_at
        )

    # --- what every event needs

    def _notices(self, agent: HostedAgent) -> list[str]:
        """Claim what others have queued for the agent; all calls but a few only see no flag."""
        is_prompt = self._event.kind == port.PROMPT
        # A sender may know a session by the id that it had before a clear.
        for recipient in (self.agent_id, *agent.memory.predecessors):
            if not is_raised(self._store.directory.path, recipient, also_later=is_prompt):
                continue
            from ultramon.hosts.calls.notices import Delivery

            record = agent.record if recipient == self.agent_id else self._store.find(recipient)
            if record is None:
                continue
            delivery = Delivery(self._store, self._store.hosted(record), is_prompt=is_prompt)
            self._deliveries.append(delivery)
            if lines := delivery.lines():
                return lines
        return []

    def _warns(self) -> bool:
        return self._audience() in (AGENT, BOTH)

    def _audience(self) -> str:
        """Return who is warned: as the environment says, else the project, else the choices."""
        host, environ = self._store.host, self._store.environ
        chosen = environ.get("ULTRAMON_AUDIENCE")
        if chosen in AUDIENCES:
            return chosen
        project = host.dialect.project(environ) or self._event.cwd
        if project:
            name = os.path.join(PROJECT_FOLDER, f"{host.name}.json")
            try:
                data, _ = read_private_file(os.path.join(project, name), check=check_one_name)
                chosen = compact_json.loads(data)["audience"]
            except FileNotFoundError:
                pass
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._store.fail(self.agent_id, f"{name} in {project}: {error!r}")
            else:
                if chosen in AUDIENCES:
                    return str(chosen)
        return self._store.installed.audience


_ACTS: dict[str, Callable[[HookCall], str | None]] = {
    port.SESSION_STARTED: HookCall._start,
    port.SESSION_ENDED: HookCall._end,
    port.SUBAGENT_STARTED: HookCall._start_subagent,
    port.SUBAGENT_ENDED: HookCall._end_subagent,
    port.PROMPT: HookCall._prompt,
    port.TOOL_STARTED: HookCall._before_call,
    port.TOOL_ENDED: HookCall._after_call,
    port.TOOLS_ENDED: HookCall._after_calls,
    port.CALL_ASKED: HookCall._before_permission,
    port.NUDGED: HookCall._nudge,
    port.WAITING: HookCall._wait,
    port.COMPACTING: HookCall._before_compaction,
    port.COMPACTED: HookCall._after_compaction,
}
