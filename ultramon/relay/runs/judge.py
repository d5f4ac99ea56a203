"""Judges how a context of a relay ended: what it leaves to the next one, or why the run stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ultramon.context.ladder import FORCE_RETURN
from ultramon.errors import WorkspaceError
from ultramon.fleet.supervise.pool import ASSIGNED
from ultramon.handoff import HandoffRecord, bounded_text
from ultramon.relay.choices import LEVELS
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    is_signal,
)
from ultramon.relay.runs.context_process import end_left_over
from ultramon.relay.runs.result import Stop
from ultramon.relay.runs.run import GOAL
from ultramon.state.models import is_whole
from ultramon.state.plan import DONE
from ultramon.state.stored_handoff import handoff_reason
from ultramon.system.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from ultramon.relay.launchers.outcome import ContextOutcome
    from ultramon.relay.runs.context_record import ContextRecord
    from ultramon.relay.runs.run import Run
    from ultramon.relay.runs.start import StartedContext
    from ultramon.relay.workspace import RelayWorkspace
    from ultramon.state.record import StateRecord

LAST_HOOK_SECONDS = 2.0
"""So long the hook of a session's end may outlast its host; then the relay stores the end."""
_MAX_ERROR_CHARS = 500


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges the contexts of one run.

    Attributes:
        run: The run.
    """

    run: Run

    def has_settled(self, context: StartedContext, code: int | None, seconds: float) -> bool:
        """Return whether the hook that stores the end of a session is done.

        No host waits for it.

        Args:
            context: Whose process has ended.
            code: Its exit code; None = unknown.
            seconds: How long ago.
        """
        if self.run.launchers.uses_sdk or seconds > LAST_HOOK_SECONDS:
            return True
        if code is not None and code < 0:
            return True  # a host that was killed calls none
        state = self.run.view.state(context.agent_id)
        return state is None or not state.active

    def take_end(self, context: StartedContext, code: int | None) -> ContextOutcome:
        """Take in how a process of a context ended, before the supervisor does.

        Raises:
            StateError: The store refused.
        """
        run, record = self.run, context.record
        # By the environment: a process in a session of its own is in no group of the context.
        end_left_over(context.marks)
        launcher = run.launchers.of(record.agent)
        try:
            with open(run.contexts.output(record), "rb") as lines:
                outcome = launcher.read_outcome(lines, code)
        except FileNotFoundError:  # killed between its record and its start
            outcome = launcher.read_outcome((), code)
        if record.ended_parts < record.parts:  # else an earlier relay was killed behind this
            fingerprint = self.fingerprint(run.workspace_of(record))
            record.is_idle = fingerprint is not None and fingerprint == record.fingerprint
            record.ended_at = SYSTEM_CLOCK.now()
            record.add(outcome)
            state = run.view.state(context.agent_id)
            run.spending.settle(record, context.agent_id, state)
            run.contexts.save(record)
        # What was killed stays as it is: its supervisor takes it for lost, and offers its work
        # again.
        if outcome.end != CUT_OFF:
            # A host may call no hook where a request fails: its agent would be lost.
            failed_with = None if outcome.ended_well else outcome.reason or outcome.error
            launcher.end_session(context.agent_id, context.environ, failed_with)
        return outcome

    def fingerprint(self, place: RelayWorkspace) -> str | None:
        """Return that of a workspace; None outside of git, or where git refuses."""
        try:
            return place.fingerprint()
        except WorkspaceError as error:
            self.run.tell(str(error))
            return None

    def close(self, context: StartedContext, outcome: ContextOutcome) -> Stop | None:
        """Store the handoff of a context; return why another one would fare no better, if so.

        Raises:
            StateError: The store refused.
        """
        if self.run.launchers.uses_sdk:
            return None
        state = self.run.view.state(context.agent_id)
        if state is not None and not state.active:
            self._leave_handoff(context.record, outcome, state)
        return None if self.run.is_stopping else self._stop(context.record, outcome, state)

    def _stop(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord | None
    ) -> Stop | None:
        if outcome.end == FAILED:
            return Stop.failed(outcome.error or outcome.reason)
        if outcome.end == CUT_OFF and outcome.session_id is None:
            if outcome.exit_code and not is_signal(outcome.exit_code):
                return Stop.failed(self._last_error(record) or f"exit {outcome.exit_code}")
        elif outcome.ended_well and state is None:
            words = "the host ended and none of the relay's hooks ran: see `ultramon doctor`"
            return Stop.failed(words)
        return None

    def _last_error(self, record: ContextRecord) -> str:
        try:
            with open(self.run.contexts.errors(record), "rb") as file:
                lines = file.read(1 << 16).decode("utf-8", "replace").strip().splitlines()
        except FileNotFoundError:
            return ""
        return lines[-1][:_MAX_ERROR_CHARS] if lines else ""

    def _leave_handoff(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord
    ) -> None:
        """Store the last words of a context as its handoff, which the next one is given."""
        if not outcome.ended_well and outcome.end not in (LIMITED, OVERFLOWED):
            return
        tasks = list(state.tasks or ()) if is_whole(state) else []
        # Where the run stops early, no goal is reached by an end.
        may_reach = not self.run.has_items and not self.run.is_stopping
        is_reached = may_reach and self._has_reached_goal(record, outcome, state)
        if is_reached:
            tasks.append({"name": GOAL, "status": DONE, "result": None})
        elif name := self._lone_item(record, outcome, state):
            tasks.append({"name": name, "status": DONE, "result": None})
        own = state.handoff.get("notes") if isinstance(state.handoff, dict) else None
        # Words alone are no progress: an agent that only talks would use up all contexts. What was
        # denied is no item's fault, and counted by itself.
        has_worked = (
            is_reached
            or not record.is_idle
            or bool(outcome.refused_count)
            or any(task["status"] == DONE for task in tasks)
        )
        # After a failure the last text may be the host's words about it.
        said = outcome.last_text if outcome.ended_well else None
        notes = "\n\n".join(text for text in (said, own) if text)
        if outcome.end == LIMITED:
            # No attempt is charged for it, and words are what counts as progress without one.
            has_worked = True
            notes = notes or f"Context {record.number} met a limit of the provider."
        now = SYSTEM_CLOCK.now()
        handoff = HandoffRecord.of(
            state,
            tasks,
            now=now,
            reason=_reason(outcome, state),
            suffix="-end",
            notes=bounded_text(notes) if has_worked and notes else None,
        )
        event = state.event(
            "handoff_ready", source=f"relay:{self.run.name}", at=now, n=1, handoff=handoff.to_json()
        )
        self.run.backend.append_events([event])

    def _lone_item(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord
    ) -> str | None:
        """Return the one item of a context that worked and ended its turn without a task list.

        Models keep none for a single step: the end of the turn is the claim.
        """
        if not self.run.has_items or state.tasks or record.is_idle:
            return None
        # Asked to hand over, or refused what it needs, it has not said that it is done.
        if outcome.end != COMPLETED or state.action != "none" or outcome.refused_count:
            return None
        self.run.view.read()
        context = self.run.view.pool.contexts.get(state.agent_id)
        held = [] if context is None else self.run.view.pool.held_by(context, ASSIGNED)
        return held[0][0] if len(held) == 1 else None

    def _has_reached_goal(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord
    ) -> bool:
        """Whether a job without a list has come to its end with this context."""
        open_count = (state.tasks_total or 0) - state.tasks_completed
        if outcome.end != COMPLETED or open_count:
            return False
        if outcome.refused_count and record.is_idle:
            return False
        # Asked to hand over, a context without a plan has not said that it is done.
        asking = (LEVELS[self.run.choices.hand_over_at], FORCE_RETURN)
        is_asked = state.action in asking and not self.run.is_single
        return bool(state.tasks_total) or not is_asked


def _reason(outcome: ContextOutcome, state: StateRecord) -> str:
    """Return why a context handed over."""
    if outcome.end == OVERFLOWED:
        return "context_overflow"
    if outcome.end == LIMITED:
        return "error"
    return handoff_reason(state.action)
