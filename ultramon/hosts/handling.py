"""What each event of the client does to the agents, and what the client is answered.

Standard library only. Nothing is injected on Stop or SubagentStop, where the client would go on
and on, nor around a compaction, where it would be dropped or change the summary; but for one line
at the start that follows it, which the client adds behind the summary.
"""

from __future__ import annotations

import os
import time

from ultramon.backends.local.inbox_flags import is_raised, raise_flag
from ultramon.errors import InvalidAgentIdError, StateError
from ultramon.hosts.claude_code.transcripts.last_reading import (
    LastReading,
    read_last_reading,
    read_last_replies,
    read_token_budget,
)
from ultramon.hosts.claude_code.transcripts.reader import OVERFLOW
from ultramon.hosts.hosted_agent import CLEAR, IS_CLEARED, SUCCESSOR, HostedAgent
from ultramon.hosts.installed_choices import AGENT, AUDIENCES, BOTH, NOBODY
from ultramon.hosts.jsonl import optional_token_count
from ultramon.state.record import StateRecord
from ultramon.system import compact_json
from ultramon.system.files import read_private_file
from ultramon.system.ids import check_agent_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ultramon.hosts.notices import Delivery
    from ultramon.hosts.payload import Payload
    from ultramon.hosts.store import HookStore

WAIT_SECONDS = 0.15
"""How long to wait for the reply that the client is about to write, where it matters."""
END_WAIT_SECONDS = 0.5
"""How long to wait for the last reply of a turn or a subagent, once: no model waits for that."""
_LOOK_AGAIN_SECONDS = 0.003
BYTES_PER_TOKEN = 3
"""Of a transcript, at least, so that a large result is never taken for a small one."""
PROJECT_FILE = os.path.join(".ultramon", "claude-code.json")


class HookCall:
    """One call of the hook.

    Args:
        payload: What the client told.
        store: Where the agents are.
        is_patient: Whether to wait for the reply away from a rung too: a request is here before
            the client has written it down, a process seldom.

    Raises:
        InvalidAgentIdError: The session's or the subagent's id may not become a file name.
    """

    def __init__(self, payload: Payload, store: HookStore, *, is_patient: bool = False) -> None:
        self._payload = payload
        self._store = store
        self._is_patient = is_patient
        self._session_id = check_agent_id(payload.session_id)
        self.agent_id = self._session_id
        self._parent_id: str | None = None
        self._problem = ""
        self._is_warning = False
        self._deliveries: list[Delivery] = []
        if payload.host_agent_id is not None:
            self.agent_id = self._child_id(payload.host_agent_id)
            self._parent_id = self._session_id

    def _child_id(self, host_agent_id: str) -> str:
        """Return a subagent's id, which it keeps when its session is cleared and renamed."""
        name = check_agent_id(host_agent_id)
        own = check_agent_id(f"{self._session_id}.{name}")
        if self._store.is_known(own):
            return own
        return next((known for known in self._adopted(name) if self._store.is_known(known)), own)

    def _adopted(self, name: str) -> list[str]:
        session = self._store.find(self._session_id)
        names = [] if session is None else self._store.hosted(session).predecessors
        return [check_agent_id(f"{one}.{name}") for one in names]

    def answer(self) -> bytes:
        """Do what the event asks for; return what the client is to read, often nothing.

        Raises:
            StateError: The state could not be stored.
        """
        event = self._payload.event
        if event in ("PostToolUse", "PostToolUseFailure", "PostToolBatch"):
            return self._after_call()
        if event == "UserPromptSubmit":
            return self._prompt()
        if event == "SessionStart":
            return self.start()
        if event == "PreCompact":
            return self._before_compaction()
        change = _CHANGES.get(event)
        if change is not None:
            change(self)
        return b""

    def acknowledge(self) -> None:
        """End the notices and the warning in the answer; call it once the client has that.

        Whoever ends before repeats them later, and loses none.
        """
        for delivery in self._deliveries:
            delivery.acknowledge()
        if self._is_warning:
            try:
                self._store.update(
                    self.agent_id, HostedAgent.has_warned, create=False, journals=False
                )
            except StateError as error:
                self._store.fail(self.agent_id, f"the warning will be repeated: {error}")

    def start(self) -> bytes:
        """SessionStart: the session begins, goes on, or was compacted.

        Returns:
            After a compaction a line for the agent: the summary may repeat what it was told before.
        """
        payload = self._payload
        source = payload.text("source")

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            # What the transcript says of the model is better: it keeps the suffix [1m].
            agent.set_model(agent.record.model or payload.text("model") or None)
            if source == "compact":
                agent.compacted("SessionStart")
                return
            agent.resume()
            agent.resolve_limit()  # another process may be set to another window
            if agent.record.measured_at is None:
                # A forked session copies the lines of the other one: they are no readings of this.
                # It may be known all the same: the status line is sometimes drawn first.
                agent.memory["readingsAfter"] = self._store.now
            elif source != "resume":
                agent.gauge.begin_epoch(CLEAR)
            if source == CLEAR:
                agent.memory[IS_CLEARED] = True
            tokens = optional_token_count(payload.fields, "context_tokens")
            if tokens is not None:
                agent.gauge.take(tokens, 0, self._store.now)
            agent.wait()

        self._follow_clear(self._store.update(self.agent_id, change))
        if source == "resume":
            # A power cut may have taken the flag of what was queued durably.
            raise_flag(self._store.directory.path, self.agent_id)
        if source != "compact" or self._audience() not in (AGENT, BOTH):
            return b""
        from ultramon.hosts.warning_text import write_compaction

        return self._context(write_compaction(self._store.now))

    def _follow_clear(self, agent: HostedAgent | None) -> None:
        """Take over from the session before a clear; tried again at the next call if it fails."""
        if agent is None or IS_CLEARED not in agent.memory:
            return
        from ultramon.hosts.succession import succeed

        try:
            succeed(self._store, agent.record)
        except StateError as error:
            self._store.fail(self.agent_id, f"the session before the clear: {error}")

    def end(self) -> None:
        """SessionEnd: the session has ended, and with it its subagents but for a clear."""
        reason = self._payload.text("reason")
        tail = self._read_tail()

        def finish(agent: HostedAgent) -> None:
            if agent.record.active:
                agent.take(tail.report)
            if tail.error == OVERFLOW:
                agent.note_failure(tail.error)
            agent.finish(reason)

        agent = self._store.update(self.agent_id, finish, create=False)
        if agent is None or reason == CLEAR:
            return
        pid = agent.record.pid
        for session_id in (self.agent_id, *agent.predecessors):
            for child_id in self._store.children(session_id):
                child = self._store.find(child_id)
                if child is None or not child.active or child.session_id != session_id:
                    continue
                # A session that was cleared may have been resumed in another process.
                if session_id == self.agent_id or child.pid == pid:
                    name = child_id.removeprefix(f"{session_id}.")
                    self._end_child(child_id, self._look_at_child(name, session_id))

    def _end_child(self, child_id: str, tail: LastReading) -> None:
        """End a subagent that the client ended without a SubagentStop."""

        def change(agent: HostedAgent) -> None:
            agent.take(tail.report)
            if tail.error is None:
                agent.end("cancelled", "session ended")
            else:
                agent.end("failed", "request failed", tail.error)

        self._store.update(child_id, change, create=False)

    def start_subagent(self) -> None:
        """SubagentStart: a subagent begins, or one that had ended goes on."""

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            agent.resume()

        self._store.update(self.agent_id, change)

    def end_subagent(self) -> None:
        """SubagentStop: it has ended; the client also sends one for every compaction."""
        payload = self._payload
        if not payload.agent_type or self._parent_id is None:
            return
        tail = self._read_last_tail()

        def change(agent: HostedAgent) -> None:
            agent.take_last(tail.report)
            agent.end("completed", "")

        self._store.update(self.agent_id, change, create=False)

    def before_call(self) -> None:
        """PreToolUse: a tool begins to run, maybe for long; the reading is that of its call."""
        tail = self._read_current_tail()

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            agent.tool_started(self._payload.call_id)
            if tail.is_current:
                agent.memory["isLagging"] = False
            agent.take(tail.report)

        self._store.update(self.agent_id, change)

    def rest(self) -> None:
        """Stop and its like: the turn is over, or the client waits for a person."""
        tail = self._read_last_tail()
        payload = self._payload

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            agent.take_last(tail.report)
            agent.wait()
            if payload.event in ("Stop", "StopFailure"):
                agent.note_failure(payload.text("error"))

        self._store.update(self.agent_id, change)

    def note_notification(self) -> None:
        """Notification: those that ask the person for something mean waiting, others nothing."""
        if self._payload.text("notification_type") in _QUESTIONS:
            self.rest()

    def after_compaction(self) -> None:
        """PostCompact: what the transcript says last is the old window still."""

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            agent.compacted("PostCompact")

        self._store.update(self.agent_id, change)

    def _before_compaction(self) -> bytes:
        tail = self._read_tail()

        def change(agent: HostedAgent) -> None:
            self._ensure(agent)
            agent.take(tail.report)
            agent.compacting()

        self._store.update(self.agent_id, change)
        note = self._store.installed.handoff_note
        return note.encode("utf-8", "replace") + b"\n" if note else b""

    def _prompt(self) -> bytes:
        prompt = self._payload.text("prompt")
        if prompt.startswith(_TASK_NEWS):
            self._end_failed_child(prompt)
        return self._measure(lambda agent: agent.begin_turn(prompt), is_call=False)

    def _end_failed_child(self, news: str) -> None:
        """End the subagent whose failure the client tells its session: it sends no SubagentStop.

        A person may type such a text, so that its transcript must say the same.
        """
        name = news.partition("<task-id>")[2].partition("</task-id>")[0]
        try:
            child_id = self._child_id(name)
        except InvalidAgentIdError:
            return
        child = self._store.find(child_id)
        if child is None or not child.active or "<status>failed</status>" not in news:
            return
        tail = self._await(
            lambda: self._look(name), lambda tail: tail.error is not None, END_WAIT_SECONDS
        )
        if tail.error is not None:
            self._end_child(child_id, tail)

    def _after_call(self) -> bytes:
        payload = self._payload
        is_batch = payload.event == "PostToolBatch"
        if payload.text("tool_name") in ("Agent", "Task"):
            self._introduce_subagent()

        def change(agent: HostedAgent) -> None:
            if is_batch:
                agent.begin_turn("")
            else:
                agent.end_call(payload.call_id)

        return self._measure(change, is_call=not is_batch)

    def _introduce_subagent(self) -> None:
        """Take a subagent's model and task from the answer of the tool that launched it."""
        response = self._payload.fields.get("tool_response")
        if not isinstance(response, dict) or not isinstance(response.get("agentId"), str):
            return
        model, task = response.get("resolvedModel"), response.get("description")

        def change(agent: HostedAgent) -> None:
            if agent.record.generation == 0:
                agent.start(self._session_id, self.agent_id, self._payload.cwd)
            agent.record.parent_id = self.agent_id
            if agent.record.model is None and isinstance(model, str) and model:
                agent.set_model(model)
            if isinstance(task, str):
                agent.record.label = None  # at its start only its type was known
                agent.begin_task(task)

        try:
            self._store.update(self._child_id(response["agentId"]), change)
        except (InvalidAgentIdError, StateError) as error:
            self._store.fail(self.agent_id, f"its subagent: {error}")

    def _measure(self, change: Callable[[HostedAgent], None], *, is_call: bool) -> bytes:
        tail = self._read_current_tail()
        audience = self._audience()
        note = ""

        def measure(agent: HostedAgent) -> None:
            nonlocal note
            self._ensure(agent)
            change(agent)
            agent.memory["isLagging"] = self._payload.call_id is not None and not tail.is_current
            agent.take(tail.report)
            message_id = tail.report.message_id if tail.report is not None else None
            if audience in (AGENT, BOTH) and agent.must_warn(
                is_call=is_call, message_id=message_id
            ):
                note = self._note(agent)
                self._is_warning = True

        agent = None
        try:
            agent = self._store.update(self.agent_id, measure)
        except StateError as error:
            # One that is locked, unsafe or of a newer version is kept, and told of, by another.
            if not isinstance(error.__cause__, OSError):
                raise
            self._store.fail(self.agent_id, str(error))
            self._is_warning = False
            note = self._unstored_note(tail) if audience in (AGENT, BOTH) else ""
        self._follow_clear(agent)
        lines = [] if agent is None or audience == NOBODY else self._notices(agent)
        # What waited is older than the note.
        told = "\n".join([*lines, note] if note else lines)
        return self._context(told) if told else b""

    def _context(self, text: str) -> bytes:
        """Return the answer that puts a text into the agent's conversation."""
        answer = {"hookEventName": self._payload.event, "additionalContext": text}
        return compact_json.dumps({"hookSpecificOutput": answer}).encode("ascii")

    def _unstored_note(self, tail: LastReading) -> str:
        """Return the warning where the system stores nothing: the transcript alone decides.

        The agent is told a rung once, where its last reply reached it and the one before had not.
        Of parallel calls the first tells, and a prompt tells what no call could.
        """
        path = self._own_transcript_path()
        try:
            is_subagent = self._parent_id is not None
            replies = read_last_replies(path, is_subagent=is_subagent) if path else []
        except (OSError, ValueError):
            return ""  # noted when the tail was read
        if not replies:
            return ""
        calls = replies[0][1]
        if calls and calls[0] != self._payload.call_id and tail.stopped_at is None:
            return ""
        agent = self._store.hosted(StateRecord(self.agent_id))
        agent.start(self._session_id, self._parent_id, self._payload.cwd)
        heights = [0]
        for report, _ in reversed(replies):
            agent.take(report)
            heights.append(agent.gauge.rank(agent.record.threshold_status or ""))
        return self._note(agent) if heights[-1] > heights[-2] else ""

    def _note(self, agent: HostedAgent) -> str:
        from ultramon.hosts.warning_text import write_note

        path = self._own_transcript_path()
        return write_note(
            agent.record,
            pace=agent.gauge.describe_pace(),
            now=self._store.now,
            has_token_budget=path is not None and read_token_budget(path) is not None,
            critical_note=self._store.installed.critical_note,
        )

    def _notices(self, agent: HostedAgent) -> list[str]:
        """Claim what others have queued for the agent; all calls but a few only see no flag."""
        for recipient in (self.agent_id, *agent.predecessors):
            lines = self._notices_for(recipient, agent)
            if lines:
                return lines
        return []

    def _notices_for(self, recipient: str, agent: HostedAgent) -> list[str]:
        event = self._payload.event
        is_prompt = event == "UserPromptSubmit"
        if not is_raised(self._store.directory.path, recipient, also_later=is_prompt):
            return []
        from ultramon.hosts.notices import Delivery

        if recipient != self.agent_id:
            before = self._store.find(recipient)
            if before is None:
                return []
            agent = self._store.hosted(before)
        delivery = Delivery(self._store, agent, event)
        self._deliveries.append(delivery)
        return delivery.lines()

    def _ensure(self, agent: HostedAgent) -> None:
        """Fill the state of an agent whose beginning no hook has seen."""
        payload, record = self._payload, agent.record
        if record.generation == 0:
            agent.start(self._session_id, self._parent_id, payload.cwd)
        elif not record.active and payload.event in _AT_WORK and SUCCESSOR not in agent.memory:
            agent.resume()  # another hook made it go on, or its return was not told
        if payload.cwd:
            record.cwd = payload.cwd
        if self._parent_id is not None:
            agent.name(payload.agent_type)
        path = self._own_transcript_path()
        if path:
            agent.memory["transcriptPath"] = path

    def _read_tail(self) -> LastReading:
        tail = self._look()
        self._note_problem()
        return tail

    def _look(self, name: str | None = None, session_id: str | None = None) -> LastReading:
        """Read the end of a transcript; what is wrong with it is said once, after the last look.

        Args:
            name: The client's name of a subagent; None = whom the event is about.
            session_id: The session under which it was written; None = that of the event.
        """
        name = name or self._payload.host_agent_id
        path = self._transcript_path(name, session_id or self._session_id)
        self._problem = ""
        if path is None:
            return LastReading()
        try:
            return read_last_reading(
                path, is_subagent=name is not None, call_id=self._payload.call_id
            )
        except FileNotFoundError:
            # Before the first reply there is none; when a tool has run there must be one.
            if self._payload.event in _INJECTABLE and self._payload.call_id is not None:
                self._problem = f"no transcript {path}"
        except (OSError, ValueError) as error:
            self._problem = f"transcript not read: {error}"
        return LastReading()

    def _note_problem(self) -> None:
        if self._problem:
            self._store.fail(self.agent_id, self._problem)

    def _look_at_child(self, name: str, session_id: str) -> LastReading:
        """Read what the client wrote of a subagent last: after a clear in another folder."""
        tail = self._look(name)
        if tail.report is None and tail.error is None and session_id != self._session_id:
            return self._look(name, session_id)
        return tail

    def _own_transcript_path(self) -> str | None:
        return self._transcript_path(self._payload.host_agent_id, self._session_id)

    def _transcript_path(self, name: str | None, session_id: str) -> str | None:
        path = self._payload.transcript_path
        if path is None or name is None:
            return path
        folder = path.removesuffix(".jsonl")
        if session_id != self._session_id:
            folder = os.path.join(os.path.dirname(path), session_id)
        return os.path.join(folder, "subagents", f"agent-{name}.jsonl")

    def _await(
        self,
        look: Callable[[], LastReading],
        is_done: Callable[[LastReading], bool],
        seconds: float,
    ) -> LastReading:
        """Look until a transcript says what is waited for, or the time is over."""
        tail = look()
        deadline = time.monotonic() + seconds
        while not is_done(tail) and time.monotonic() < deadline:
            time.sleep(_LOOK_AGAIN_SECONDS)
            tail = look()
        self._note_problem()
        return tail

    def _read_last_tail(self) -> LastReading:
        """Wait for the reply that the payload calls the last one, and that is no earlier one."""
        text = self._payload.text("last_assistant_message").rstrip()
        if not text:
            return self._read_tail()
        stored = self._store.find(self.agent_id)
        before = None if stored is None else self._store.hosted(stored).memory.get("lastReplyAt")

        def is_last(tail: LastReading) -> bool:
            said = tail.text.strip()
            is_new = tail.report is not None and tail.report.at != before
            return tail.error is not None or (is_new and bool(said) and text.endswith(said))

        return self._await(self._look, is_last, END_WAIT_SECONDS)

    def _read_current_tail(self) -> LastReading:
        """Wait for the reply with the call that has just run, where it may reach a rung.

        The client writes the transcript while the hook runs already: without waiting, about half
        of all readings were one call old, all of them up to date within 60 ms.
        """
        tail = self._look()
        if self._payload.call_id and not tail.is_current and self._may_hide_a_rung(tail):
            return self._await(self._look, lambda tail: tail.is_current, WAIT_SECONDS)
        self._note_problem()
        return tail

    def _may_hide_a_rung(self, tail: LastReading) -> bool:
        stored = self._store.find(self.agent_id)
        if stored is None:
            return True
        agent = self._store.hosted(stored)
        if tail.report is None or stored.measured_at is None:
            # Nothing is known of this window; but what was waited for in vain may never come.
            return not agent.memory.get("isLagging")
        if self._is_patient:
            return True
        # The result that was just written may be most of a window.
        return agent.gauge.is_near(tail.report.tokens + tail.bytes_behind // BYTES_PER_TOKEN)

    def _audience(self) -> str:
        """Return who is told: the environment's word, the project's, the installation's."""
        chosen = self._store.environ.get("ULTRAMON_AUDIENCE")
        if chosen in AUDIENCES:
            return chosen
        project = self._store.environ.get("CLAUDE_PROJECT_DIR") or self._payload.cwd
        if project:
            try:
                data, _ = read_private_file(os.path.join(project, PROJECT_FILE))
                chosen = compact_json.loads(data)["audience"]
            except FileNotFoundError:
                pass
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._store.fail(self.agent_id, f"{PROJECT_FILE} in {project}: {error!r}")
            else:
                if chosen in AUDIENCES:
                    return str(chosen)
        return self._store.installed.audience


_INJECTABLE = ("PostToolUse", "PostToolUseFailure", "PostToolBatch", "UserPromptSubmit")
# Old clients have no types, and notify only of these.
_QUESTIONS = ("", "permission_prompt", "idle_prompt", "elicitation_dialog", "agent_needs_input")
_AT_WORK = (*_INJECTABLE, "PreToolUse")
_TASK_NEWS = "<task-notification>"
_CHANGES = {
    "SessionEnd": HookCall.end,
    "SubagentStart": HookCall.start_subagent,
    "SubagentStop": HookCall.end_subagent,
    "PreToolUse": HookCall.before_call,
    "PostCompact": HookCall.after_compaction,
    "Stop": HookCall.rest,
    "StopFailure": HookCall.rest,
    "Notification": HookCall.note_notification,
    "PermissionRequest": HookCall.rest,
}
