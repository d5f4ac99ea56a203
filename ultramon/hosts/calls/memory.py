"""What hooks remember of one agent from call to call, in its state: the only place that resets it.

Standard library only and cheap: every hook loads it.
"""

from __future__ import annotations

from ultramon.context.gauge import GaugeMemory
from ultramon.state.stored_fields import StoredFields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ultramon.hosts.calls.facts import (
        Asked,
        Enforced,
        LastPrompt,
        LeftTasks,
        Warned,
        WouldEnforce,
    )

    AgentId = str
    Positive = int

_MAX_PREDECESSORS = 8
_MAX_RUNNING = 32
"""Calls that run, and that ended before their start was reported: of each so many are kept."""


class HookMemory(StoredFields, GaugeMemory):
    """What hooks remember of a session or a subagent.

    Attributes:
        transcript_path: Its transcript, or None.
        tmux_pane: Of its session, or None.
        environment: What is kept of its session's environment, or None.
        installed_at: Of the installation by which its limit was worked out, or None.
        prompts: How many the conversation holds, counted no further than the host needs to
            compact it.
        status_tokens: The last count of the host's own status line, or None.
        last_reply_at: Time of the last reply of its last turn, or None.
        predecessors: The cleared sessions that it continues, the last one first.
        successor_id: The session that continues it after a clear, or None.
        is_cleared: Whether something of its predecessor is still to be moved.
        is_compacted: Whether it has not read of its compaction yet.
        is_lagging: Whether the last reading may be one call old.
        compacted_by: The event that reported the last compaction, or None.
        client_version: Of the host, where it was asked for; empty = its files do not name it.
        full_at: Tokens in the window when an automatic compaction began that may follow, or None.
        compaction_id: The last compaction that its transcript showed, or None.
        running: Its tool calls.
        ended_early: Tool calls whose end was reported before their start.
        call_ended_at: When the host made the last call that ended a tool's, on the clock of
            `ultramon.system.processes.boot_seconds`.
        runs_nothing_since: The same for the last one that left no tool running.
        waits_for: What a person is asked for; empty = it works, or waits for its next prompt.
        turn_ended: Whether enforcement ended its turn.
        failed_with: What its last turn failed with, empty when it did not.
        last_prompt: What a person wrote last, where pins were installed.
        shown_request: The last request to hand over that it was shown, by its id, or None.
        told_of_messages: The last message of others that was announced to it, by their mode.
        pending_ends: The subagents whose end is not reported yet, each with the process that is
            to report it, or None.
        told_ends: The generations whose end was reported, by the id of the subagent.
        left_tasks, last_text, stop_reason: Of a subagent that ended: facts for its launcher.
        returned_no_text: Whether its launcher got no text of a subagent that ended.
        warned, asked, enforced, would_enforce: See their classes; None = that has not happened.
        ended_calls: Tool calls that ended since it is asked to return.
    """

    transcript_path: str | None
    tmux_pane: str | None
    environment: Mapping[str, str] | None
    installed_at: object
    prompts: int
    status_tokens: int | None
    last_reply_at: float | None
    predecessors: Sequence[AgentId]
    successor_id: str | None
    is_cleared: bool
    is_compacted: bool
    is_lagging: bool
    compacted_by: str | None
    client_version: str | None
    full_at: Positive | None
    compaction_id: str | None
    running: Sequence[str]
    ended_early: Sequence[str]
    call_ended_at: float
    runs_nothing_since: float
    waits_for: str
    turn_ended: bool
    failed_with: str
    last_prompt: LastPrompt | None
    shown_request: object
    told_of_messages: Mapping[str, int]
    pending_ends: Mapping[str, object]
    told_ends: Mapping[str, int]
    left_tasks: LeftTasks | None
    last_text: str | None
    stop_reason: str | None
    returned_no_text: bool
    warned: Warned | None
    asked: Asked | None
    ended_calls: Sequence[str]
    enforced: Enforced | None
    would_enforce: WouldEnforce | None

    @classmethod
    def part(cls, kind: str) -> type[StoredFields]:
        """Return the class of a larger fact, loaded here because most calls need none."""
        from ultramon.hosts.calls import facts

        found: type[StoredFields] = getattr(facts, kind)
        return found

    # --- what the events of its life leave

    def begin_life(self) -> None:
        """It continues after its end, maybe in another process: that end is forgotten."""
        del self.successor_id, self.left_tasks, self.last_text, self.stop_reason, self.turn_ended
        del self.returned_no_text

    def forget_reminders(self) -> None:
        """What it has read is not in its conversation any more: all of it comes again."""
        del self.warned, self.asked, self.ended_calls, self.shown_request

    def follow(self, old_id: str, old: HookMemory) -> None:
        """It continues a session that was cleared: one that was ended stays so."""
        self.predecessors = [old_id, *old.predecessors][:_MAX_PREDECESSORS]
        if self.enforced is None and old.enforced is not None:
            self.enforced = old.enforced
        if self.would_enforce is None and old.would_enforce is not None:
            self.would_enforce = old.would_enforce

    def begin_turn(self, at: float) -> None:
        """A prompt was submitted, or all calls of a reply have ended.

        Args:
            at: When the host made the call that says so, on the clock of `boot_seconds`.
        """
        self.run_nothing(at)
        del self.turn_ended, self.failed_with

    def run_nothing(self, at: float) -> None:
        """A turn began or ended, or the agent has ended; `at` is that of `begin_turn`."""
        del self.running, self.call_ended_at, self.ended_early, self.waits_for
        self.runs_nothing_since = at

    def begin_call(self, call_id: str | None) -> None:
        """A tool begins to run: whatever ended the turn, the host never had the answer."""
        if call_id and call_id not in self.running:
            self.running = [*self.running, call_id][-_MAX_RUNNING:]
        del self.turn_ended, self.waits_for

    def end_call(self, call_id: str | None, at: float) -> None:
        """A tool has run, maybe one whose start is reported later; `at` is that of `begin_turn`."""
        self.call_ended_at = at
        if call_id in self.running:
            self.running = [one for one in self.running if one != call_id]
        elif call_id and call_id not in self.ended_early:
            self.ended_early = [*self.ended_early, call_id][-_MAX_RUNNING:]
        del self.waits_for

    def begin_window(self) -> None:
        """The conversation was compacted: no warning before counts, and it is to read of that."""
        del self.warned, self.is_lagging
        self.is_compacted = True

    def is_first_report(self, event: str) -> bool:
        """Return whether an event is the first of the two that may report one compaction."""
        is_first = self.compacted_by in (None, event)
        del self.compacted_by
        if is_first:
            self.compacted_by = event
        return is_first
