"""Ends an agent that was asked to return and continues, where an installation chose so.

Standard library only; loaded where an agent that is asked to return has called a tool. In doubt the
agent continues: what is due is asked under the lock of its state, and it is ended only after its
handoff is stored.
"""

from __future__ import annotations

import os
import time

from ultramon.errors import StateError
from ultramon.hosts.calls.facts import Enforced, WouldEnforce, of_epoch
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED, one_line
from ultramon.hosts.calls.invocation import is_gone, this_process
from ultramon.hosts.installed_choices import OFF_SUFFIX
from ultramon.hosts.port import CALL_ASKED, TOOLS_ENDED
from ultramon.state.liveness import LOST_AFTER_SECONDS
from ultramon.system import compact_json
from ultramon.system.files import open_private, read_private_file, replace_file
from ultramon.system.locks import Lock
from ultramon.system.timestamps import format_time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ultramon.hosts.calls.called_agent import CalledAgent
    from ultramon.hosts.calls.hosted_agent import HostedAgent
    from ultramon.hosts.calls.memory import HookMemory
    from ultramon.hosts.calls.store import HookStore
    from ultramon.hosts.port import HookEvent
    from ultramon.hosts.transcripts.records import LastReading

TRUSTED_SOURCES = ("explicit", "host", "observed")
"""Of a limit: a table of models may be wrong about the window of this one."""
# An older reading may be of a window that was emptied since.
MAX_READING_AGE_SECONDS = 120.0
REPLIES_TO_RETURN = 3
"""Replies that an agent may spend on calls after it was asked: to finish, to note what is left."""
MAX_ENDS = 3
WINDOW_SECONDS = 3600.0
"""So many agents of a state directory are ended within this time; then enforcement is off."""
SAME_END_SECONDS = 10.0
"""As long as a host waits for a hook."""
CHECKPOINT_SECONDS = 4.0
"""For git; the host waits for ten seconds."""
LEDGER_SUFFIX = ".enforced.json"
"""Of the file, after the host's name, that holds when agents were ended within the last hour."""
REFS = "refs/ultramon/enforced"

_UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError)
_LOCK_SECONDS = 1.0
_CLOCK_SLACK_SECONDS = 5.0
_MAX_TEXT_CHARS = 300
_MAX_PROBLEM_CHARS = 200


class Enforcement:
    """The enforcement of one hook call.

    Args:
        event: The call.
        store: Where the agents are.
        called: The agent of the call.
        path: Its transcript, or None.

    Attributes:
        stop_reason: Why the agent was ended, for people; empty = it was not.
        user_note: What the user must know though no agent was ended; empty = nothing.
    """

    def __init__(
        self, event: HookEvent, store: HookStore, called: CalledAgent, path: str | None
    ) -> None:
        self.stop_reason = ""
        self.user_note = ""
        self._event = event
        self._store = store
        self._called = called
        self._path = path
        self._last_text = ""
        self._running: Sequence[str] = ()

    def is_due(self, agent: HostedAgent, reading: LastReading) -> bool:
        """Return whether the agent must be ended now; note it where only a dry run would end it.

        Called under the lock of the agent's state, after the call and the reading are in it.
        """
        memory, now = agent.memory, self._store.now
        if is_enforced(memory) or not self._has_had_time(agent, reading):
            return False
        record = agent.record
        age_seconds = now - (record.measured_at or 0.0)
        if (
            not _is_certain(agent)
            or not -_CLOCK_SLACK_SECONDS <= age_seconds <= MAX_READING_AGE_SECONDS
            or not self._is_last_call(agent)
            or self._has_subagents_at_work(agent)
            or os.path.lexists(self._store.installed.switch_path)
        ):
            return False
        self._last_text = one_line(reading.text)[:_MAX_TEXT_CHARS]
        # One that was denied never ends; the reply says that none of these is at work.
        self._running = memory.running
        if not self._store.installed.enforce_dry_run:
            return True
        if memory.would_enforce is None:
            memory.would_enforce = WouldEnforce(at=now, tokens=record.estimated_tokens)
            agent.gauge.event("return_enforced", reason=_fill(agent), checkpoint=None, dryRun=True)
        return False

    def _has_had_time(self, agent: HostedAgent, reading: LastReading) -> bool:
        """Count this reply among those since the agent was asked; return whether it is too many."""
        asked, report = of_epoch(agent.memory.asked, agent.record.epoch), reading.report
        if report is None or report.at is None or not reading.is_current:
            return False
        if asked is None or asked.at is None or report.at <= asked.at:
            return False  # of the reply whose calls were answered with the request
        reply = report.message_id or report.at
        if asked.reply != reply:
            asked.reply = reply
            asked.replies += 1
        return asked.replies >= REPLIES_TO_RETURN

    def _is_last_call(self, agent: HostedAgent) -> bool:
        """Return whether all calls of this reply have ended: the host would run the rest."""
        if self._event.kind in (TOOLS_ENDED, CALL_ASKED):
            return True
        is_subagent = self._called.parent_id is not None
        try:
            replies = self._store.host.transcripts.read_last_replies(
                self._path or "", is_subagent=is_subagent
            )
        except (OSError, ValueError):
            return False
        calls = replies[0][1] if replies else []
        ended = agent.memory.ended_calls
        return self._event.call_id in calls and all(call in ended for call in calls)

    def _has_subagents_at_work(self, agent: HostedAgent) -> bool:
        """Return whether the host would end others along with this session."""
        names = (
            name
            for session_id in (self._called.agent_id, *agent.memory.predecessors)
            for name in self._store.children(session_id)
        )
        children = filter(None, map(self._store.find, names))
        latest = self._store.now - LOST_AFTER_SECONDS
        return any(child.active and child.last_activity > latest for child in children)

    def end(self) -> HostedAgent | None:
        """Store the handoff and a git checkpoint, and that the agent has ended.

        Returns:
            The agent as stored; None = it was not ended and continues.
        """
        agent_id = self._called.agent_id
        try:
            # Counted before the end: hooks of several agents that end at once share one limit.
            reserved = self._reserve()
        except StateError as error:
            self._store.fail(agent_id, f"not ended: {error}")
            return None
        if not reserved:
            return None
        found = self._store.find(agent_id)
        checkpoint, problem = self._keep_tree(found.cwd if found is not None else None)
        try:
            agent = self._store.update(
                agent_id, lambda agent: self._end(agent, checkpoint, problem), create=False
            )
        except StateError as error:
            self._store.fail(agent_id, f"not ended: its handoff cannot be stored: {error}")
            agent = None
        if self.stop_reason and agent is not None:
            return agent
        self.stop_reason = ""
        self._release()
        return None

    def _end(self, agent: HostedAgent, checkpoint: str | None, problem: str) -> None:
        record, memory, now = agent.record, agent.memory, self._store.now
        if is_enforced(memory):
            # By another call of the same reply, about which the host asked at the same time.
            self.stop_reason = NOT_RETURNED
            return
        begun = [call for call in memory.running if call not in self._running]
        if begun or not (record.active and agent.must_return):
            return  # a parallel call has changed it meanwhile
        from ultramon.state.stored_handoff import write_handoff

        self.stop_reason = self._describe(agent, checkpoint, problem)
        notes = [f'The last it wrote: "{self._last_text}".' if self._last_text else ""]
        notes.append(f"The working tree was kept: {checkpoint}." if checkpoint else "")
        event = write_handoff(
            record,
            now=now,
            reason="threshold_critical",
            notes="\n".join(note for note in notes if note) or None,
        )
        agent.gauge.events.append(event)
        agent.gauge.event(
            "return_enforced", reason=self.stop_reason, checkpoint=checkpoint, dryRun=False
        )
        memory.enforced = Enforced(
            at=now,
            tokens=record.estimated_tokens,
            checkpoint=checkpoint,
            problem=problem,
            printer=this_process(),
        )
        if self._called.parent_id is None:
            # Its turn is over. Where no person can begin another one, the host ends the session.
            memory.turn_ended = True
            agent.wait()
            if self._event.ends_session:
                agent.finish("")
        else:
            agent.end("cancelled", NOT_RETURNED)
            if self._last_text:
                memory.last_text = self._last_text

    def acknowledge(self, agent: HostedAgent) -> None:
        """Remember that the host has the answer: only then this chain has been ended."""
        if agent.memory.enforced is not None:
            del agent.memory.enforced.printer

    def _describe(self, agent: HostedAgent, checkpoint: str | None, problem: str) -> str:
        from ultramon.system.terminal_text import sanitize

        path = os.path.abspath(self._store.directory.file(agent.record.agent_id))
        kept = f"the working tree is kept as {checkpoint}" if checkpoint else ""
        if problem:
            kept += f"{' (' if kept else 'no git checkpoint: '}{problem}{')' if kept else ''}"
        what = "turn" if self._called.parent_id is None else "subagent"
        return sanitize(
            f"[ultramon] ended this {what}: it was asked to return and continued. {_fill(agent)}"
            f" Its handoff is in {path}; {kept}.",
            max_chars=4 * _MAX_TEXT_CHARS + len(path),
        )

    # --- the git checkpoint

    def _keep_tree(self, cwd: str | None) -> tuple[str | None, str]:
        """Keep the working tree.

        Returns:
            Its commit and ref, None where there is none; what is wrong, empty for nothing.
        """
        if cwd is None:
            return None, "the working directory is not known"
        from ultramon.errors import WorkspaceError
        from ultramon.system.git import run_git
        from ultramon.system.git_trees import failure, keep_tree

        deadline = time.monotonic() + CHECKPOINT_SECONDS
        found = run_git(cwd, "rev-parse", "--show-toplevel", seconds=CHECKPOINT_SECONDS)
        if found is not None and b"not a git repository" in found.stderr:
            return None, "not in a git repository"
        # A dot in an id may stand where a ref allows none.
        ref = f"{REFS}/{self._called.agent_id.replace('.', '-')}"
        try:
            if found is None or found.returncode:
                raise failure(cwd, "rev-parse", found, CHECKPOINT_SECONDS)
            kept = keep_tree(
                os.fsdecode(found.stdout.removesuffix(b"\n")),
                ref,
                f"ultramon: agent {self._called.agent_id} was ended here",
                folder=self._store.directory.path,
                seconds=max(0.0, deadline - time.monotonic()),
            )
        except WorkspaceError as error:
            return None, error.reason[:_MAX_PROBLEM_CHARS]
        return f"{kept.commit[:12]} ({ref})", (kept.note or "")[:_MAX_PROBLEM_CHARS]

    # --- how often

    def _reserve(self) -> bool:
        """Count one more end within the hour; where that is too many, switch enforcement off."""
        with self._locked_ledger():
            try:
                ends = self._read_ledger()
            except _UNREADABLE as error:
                # Without the count there is no bound on how many agents are ended.
                self._switch_off(f"{self._ledger_path} cannot be read: {error}")
                self._write_ledger([])
                return False
            now, agent_id = self._store.now, self._called.agent_id
            if any(end[1:] == [agent_id] and now - end[0] < SAME_END_SECONDS for end in ends):
                return True  # the host asks for other calls of the same reply
            if len(ends) < MAX_ENDS:
                self._write_ledger([*ends, [now, agent_id]])
                return True
            self._switch_off(
                f"{len(ends)} agents were ended within an hour,"
                f" and {self._called.agent_id} would be one more"
            )
            return False

    def _release(self) -> None:
        """Take the count back: no agent was ended."""
        try:
            with self._locked_ledger():
                own = [self._store.now, self._called.agent_id]
                self._write_ledger([end for end in self._read_ledger() if end != own])
        except (StateError, *_UNREADABLE):
            return  # then this hour has one less

    @property
    def _ledger_path(self) -> str:
        return os.path.join(self._store.directory.path, self._store.host.name + LEDGER_SUFFIX)

    def _locked_ledger(self) -> Lock:
        return Lock(f"{self._ledger_path}.lock", open_private, _LOCK_SECONDS)

    def _read_ledger(self) -> list[list[Any]]:
        try:
            ends = compact_json.loads(read_private_file(self._ledger_path)[0])["ends"]
        except FileNotFoundError:
            return []
        now = self._store.now
        # One of the future was noted before the clock was set back.
        return [end for end in ends if now - WINDOW_SECONDS < end[0]]

    def _write_ledger(self, ends: list[list[Any]]) -> None:
        replace_file(self._ledger_path, compact_json.dumps({"ends": ends}).encode("ascii"))

    def _switch_off(self, reason: str) -> None:
        store = self._store
        facts = {"at": format_time(store.now), "reason": reason}
        again = "the relay is started again"
        if not store.environ.get("ULTRAMON_RELAY"):
            again = f"ultramon install {store.host.name}"
        note = f"ultramon has switched enforcement off: {reason}. It stays off until: {again}"
        replace_file(store.installed.switch_path, compact_json.dumps(facts).encode("ascii"))
        self.user_note = note
        store.fail(self._called.agent_id, note)


def has_ended(agent: HostedAgent) -> bool:
    """Return whether an agent was ended in this turn, or, a subagent, in its life."""
    is_over = agent.memory.turn_ended or not (agent.is_session or agent.record.active)
    return is_over and is_enforced(agent.memory)


def is_enforced(memory: HookMemory) -> bool:
    """Return whether a session, or one that it continues, or a subagent was ended already.

    Where a hook was killed before the host had its answer, it was not.
    """
    return memory.enforced is not None and not is_gone(memory.enforced.printer)


def write_rule(store: HookStore, agent: HostedAgent) -> str:
    """Return the sentence for an agent that will be ended unless it returns; empty for others."""
    installed = store.installed
    if (
        installed.enforce_dry_run
        or of_epoch(agent.memory.asked, agent.record.epoch) is not None
        or is_enforced(agent.memory)
        or not _is_certain(agent)
        or os.path.lexists(installed.switch_path)
    ):
        return ""
    return (
        f"The user has chosen that a hook ends this turn after {REPLIES_TO_RETURN} more replies"
        " that call tools. A reply that says what is done and what is left ends it in order."
    )


def describe(memory: HookMemory) -> str | None:
    """Return what enforcement has done to an agent, or (a dry run) would have; None = nothing."""
    found = memory.enforced if is_enforced(memory) else memory.would_enforce
    if found is None or found.at is None or found.tokens is None:
        return None
    try:
        when = f"at {format_time(found.at)} with {found.tokens:,} tokens"
    except ValueError:
        return None  # no hook wrote that
    if not isinstance(found, Enforced):
        return f"dry run: would have been ended {when}"
    kept = found.checkpoint or f"no git checkpoint: {found.problem}"
    return f"ended {when}: {NOT_RETURNED.partition(': ')[2]}; {kept}"


def why_off(state_directory: str, host: str) -> str | None:
    """Return when and why enforcement has switched itself off, None where it has not.

    Raises:
        OSError: The system refused to read it.
        StateCorruptError: It is not this user's own file.
    """
    path = os.path.join(state_directory, host + OFF_SUFFIX)
    try:
        facts = compact_json.loads(read_private_file(path)[0])
        return f"{facts['reason']}, at {facts['at']}"
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        return f"{path} is there"


def _is_certain(agent: HostedAgent) -> bool:
    source = agent.record.limit_source
    if source != "host":
        return source in TRUSTED_SOURCES
    # What a host takes for an unknown model is labelled so too, though it did not state it.
    memory = agent.memory
    stated = (memory.window_tokens, memory.trigger_tokens, memory.refusal_tokens)
    return agent.record.context_limit in stated


def _fill(agent: HostedAgent) -> str:
    from ultramon.context.level_words import level_words
    from ultramon.state.usage_percent import usage_words

    record = agent.record
    return (
        f"Its context window holds {record.estimated_tokens:,} of {record.context_limit or 0:,}"
        f" tokens ({usage_words(record)}: {level_words(record)})."
    )
