"""The rights of an agent on the server: it changes itself, and sees itself and its children."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

from ultramon.context.gauge import is_lower_bound, known_tokens
from ultramon.context.ladder import Ladder
from ultramon.context.level_words import share_of
from ultramon.context.limits import is_assumed
from ultramon.context.note import describe_pace, write_note
from ultramon.errors import AgentNotFoundError, NotPermittedError, StateError
from ultramon.mcp.models import (
    UNKNOWN,
    ContextStatus,
    Fitting,
    HandedOff,
    Plan,
    Task,
)
from ultramon.state.level_share import words_of
from ultramon.state.liveness import ENDED, judge
from ultramon.state.observed import Unreadable, observe
from ultramon.state.runway import Runway
from ultramon.state.usage_percent import percent_down
from ultramon.system.ids import check_agent_id
from ultramon.system.processes import this_machine
from ultramon.system.terminal_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal, TypeVar, Unpack

    from ultramon.backends.base import Backend
    from ultramon.context.ladder import ResolvedLadder
    from ultramon.context.tracker import ContextTracker
    from ultramon.handoff import HandoffTexts
    from ultramon.mcp.models import Unknown
    from ultramon.state.record import StateRecord
    from ultramon.state.stored_plan import StoredPlan
    from ultramon.system.clock import Clock

    _Value = TypeVar("_Value")

MAX_FILE_BYTES = 16 << 20
"""A larger text fits into no window; nothing of it is read."""
_CHARS_PER_TOKEN = {"claude_v47": 2.25, "claude_v3": 2.8, "chars/4": 4.0}
"""4, less the share by which that undercounts coding sessions: 44 and 29 %; below, 14 %."""
_OTHER_CHARS_PER_TOKEN = 3.4
_MAX_TEXT_CHARS = 1000


class OwnAgent:
    """One agent that calls the server.

    Args:
        backend: The store.
        agent_id: The agent.
        clock: For the ages of readings.
        resume_command: Returns the command that resumes an agent, None where there is none.
    """

    def __init__(
        self,
        backend: Backend,
        agent_id: str,
        clock: Clock,
        resume_command: Callable[[StateRecord], str | None],
    ) -> None:
        self._backend = backend
        self.agent_id = check_agent_id(agent_id)
        self._clock = clock
        self._resume_command = resume_command

    def status(self, agent_id: str | None) -> ContextStatus:
        """Return how full the window of an agent is: of this one (None), or of a child of it.

        Raises:
            InvalidAgentIdError: It is no agent id.
            AgentNotFoundError: There is no such agent.
            NotPermittedError: It is another agent, and no direct child.
            StateError: Its state cannot be read.
        """
        record, heartbeat_at = self._load(agent_id)
        now = self._clock.now()
        liveness = judge(record, heartbeat_at, now, this_machine())
        resolved = Ladder.from_json(record.ladder).resolve(record.context_limit)
        tokens, limit, measured_at = known_tokens(record), record.context_limit, record.measured_at
        ratio = record.usage_ratio if measured_at is not None else None
        level = record.threshold_status
        rank = resolved.rank(level)
        ahead = resolved.rungs[rank].name if rank < len(resolved.rungs) else ""
        runway = Runway.of(((record.forecast or {}).get("rungs") or {}).get(ahead))
        age = None if measured_at is None else round(max(0.0, now - measured_at), 1)
        left = None if tokens is None or limit is None else limit - tokens
        verdict = liveness.verdict
        return ContextStatus(
            agent_id=record.agent_id,
            label=_text(record.label),
            summary=_summary(record, resolved, now),
            used_percent=_or_unknown(None if ratio is None else percent_down(ratio)),
            tokens=_or_unknown(tokens),
            more_tokens_possible=measured_at is not None and is_lower_bound(record),
            tokens_source=record.tokens_source if measured_at is not None else UNKNOWN,
            limit_tokens=_or_unknown(limit),
            limit_source=record.limit_source,
            tokens_left=_or_unknown(left),
            level=level or UNKNOWN,
            action=record.action,
            next_level=ahead,
            turns_to_next_level=_or_unknown(None if runway is None else runway.turns),
            turns_to_next_level_low=_or_unknown(None if runway is None else runway.low),
            turns_to_next_level_high=_or_unknown(None if runway is None else runway.high),
            reading_age_seconds=_or_unknown(age),
            lifecycle=verdict if verdict != ENDED else record.outcome or ENDED,
            current_task=_name(record.current_task),
            tasks_completed=record.tasks_completed,
            tasks_total=_or_unknown(record.tasks_total),
        )

    def state(self, agent_id: str | None) -> dict[str, Any]:
        """Return the stored state of an agent, with the verdict about its life, as JSON.

        Raises:
            InvalidAgentIdError, AgentNotFoundError, NotPermittedError, StateError: As `status`.
        """
        record, heartbeat_at = self._load(agent_id)
        one = observe(record, heartbeat_at, self._clock.now(), this_machine())
        if isinstance(one, Unreadable):
            raise StateError(record.agent_id, one.reason)
        return one.to_json()

    def will_it_fit(
        self, *, tokens: int | None, characters: int | None, file: str | None
    ) -> Fitting:
        """Say whether something fits into this agent's window; exactly one of the sizes is given.

        Args:
            tokens: Its tokens.
            characters: Its length; the tokens are estimated as those of a coding session.
            file: A text file below the agent's working directory; its text is estimated.

        Raises:
            ValueError: None or several are given, or the file is no text below that directory.
            AgentNotFoundError, StateError: As `status`.
            OSError: The file cannot be read.
        """
        from ultramon.context.estimator import family_for_model
        from ultramon.context.tracker import ContextTracker

        if sum(one is not None for one in (tokens, characters, file)) != 1:
            raise ValueError("give exactly one of: tokens, characters, file")
        record, _ = self._load(None)
        tracker = ContextTracker(family_for_model(record.model))
        tracker.restore(record)
        if tokens is not None:
            return _fitting(record, tracker, tokens, is_estimate=False)
        if characters is not None:
            # Of a length alone nothing is known about the text, so it is taken as text dense in
            # tokens.
            per_token = _CHARS_PER_TOKEN.get(tracker.family or "", _OTHER_CHARS_PER_TOKEN)
            estimate = characters / per_token
        else:
            # The text itself is counted as the agent's own window is, with what its reports have
            # corrected.
            text = _read_text(file or "", record.cwd)
            estimate = tracker.calibration * tracker.estimate(text)
        # Rounded up: an answer that something fits must hold for all of it.
        return _fitting(record, tracker, -int(-estimate // 1), is_estimate=True)

    def plan(self, add: Sequence[str], start: str | None) -> Plan:
        """Add tasks to this agent's plan, begin one, and return the plan.

        Raises:
            AgentNotFoundError, StateError: As `status`.
            AgentWorkError: That is not possible; nothing was changed.
        """
        from ultramon.stored_work.plan import add_tasks, start_task

        # Without a change nothing is written, so an agent whose program keeps its plan can read it
        # here.
        if not add and start is None:
            return _plan(self._load(None)[0])

        def step(plan: StoredPlan) -> None:
            add_tasks(plan, add)
            if start is not None:
                start_task(plan, start)

        return self._change_plan(step)

    def finish_task(self, task: str | None, result: str | None) -> Plan:
        """Mark a task as done (None = the current one) and return the plan.

        Raises:
            AgentNotFoundError, AgentWorkError, StateError: As `plan`.
        """
        from ultramon.stored_work.plan import finish_task

        return self._change_plan(lambda plan: finish_task(plan, task, result))

    def hand_off(self, **texts: Unpack[HandoffTexts]) -> HandedOff:
        """Leave a handoff; see `ultramon.stored_work.handoff.leave_handoff`.

        Raises:
            AgentNotFoundError, AgentWorkError, StateError: As `plan`.
        """
        from ultramon.stored_work.handoff import leave_handoff

        handoff, _ = leave_handoff(
            self._backend,
            self.agent_id,
            self._clock.now(),
            resume_command=self._resume_command,
            **texts,
        )
        return HandedOff(
            handoff_id=handoff.handoff_id,
            agent_id=handoff.agent_id,
            reason=handoff.reason,
            completed=[_name(name) for name in handoff.completed],
            interrupted=[_name(name) for name in handoff.interrupted],
            remaining=[_name(name) for name in handoff.remaining],
            next="The record is stored for a successor. You are still running: finish or stop as "
            "your instructions say. A later hand_off replaces this one.",
        )

    def _change_plan(self, step: Callable[[StoredPlan], object]) -> Plan:
        from ultramon.stored_work.plan import change_plan

        return _plan(change_plan(self._backend, self.agent_id, self._clock.now(), step))

    def _load(self, agent_id: str | None) -> tuple[StateRecord, float | None]:
        wanted = self.agent_id if agent_id is None else check_agent_id(agent_id)
        try:
            stored = self._backend.load(wanted)
        except AgentNotFoundError:
            hint = "it has not reported yet; are the hooks installed? `ultramon doctor` says"
            if wanted == self.agent_id:
                raise AgentNotFoundError(wanted, hint) from None
            # Whether a foreign agent exists is nothing that a caller may find out.
            raise NotPermittedError(wanted, self.agent_id, "look at") from None
        record = stored.record
        # Tasks and labels of strangers are nothing that an agent may read.
        if wanted != self.agent_id and (record is None or record.parent_id != self.agent_id):
            raise NotPermittedError(wanted, self.agent_id, "look at")
        if record is None:
            raise stored.problem or AgentNotFoundError(wanted)
        return record, stored.heartbeat_at


def _summary(record: StateRecord, resolved: ResolvedLadder, now: float) -> str:
    candidates, measured_at = record.limit_candidates or (), record.measured_at
    tokens = record.estimated_tokens
    is_known = measured_at is not None and known_tokens(record) is not None
    return write_note(
        tokens,
        record.context_limit,
        reading=(record.tokens_source, measured_at or 0.0) if is_known else None,
        now=now,
        is_lower_bound=is_lower_bound(record),
        limit_name=next((c["name"] for c in candidates if c["verdict"] == "binding"), None),
        window_tokens=record.context_window,
        compacts=any(c["name"] == "trigger" for c in candidates),
        pace=describe_pace(
            record.forecast, resolved, record.threshold_status, tokens, record.context_limit
        ),
        tasks=(record.tasks_completed, record.tasks_total),
        action=record.action,
        rounds=bool(record.ladder.get("roundPercent")),
        is_assumed=is_assumed(record.limit_source),
    )


def _fitting(
    record: StateRecord, tracker: ContextTracker, needed: int, *, is_estimate: bool
) -> Fitting:
    from ultramon.context.monitor_gauge import fit_more

    limit = record.context_limit
    is_known = record.measured_at is not None and known_tokens(record) is not None
    after = tracker.tokens_with(0.0) + needed
    fit = fit_more(after, limit, Ladder.from_json(record.ladder), record.threshold_status)
    about = f"about {needed:,}" if is_estimate else f"{needed:,}"
    verdict: Literal["fits", "too_large", "unknown"] = "fits" if fit.ok else "too_large"
    if limit is None:
        verdict, reason = UNKNOWN, "the context limit of this agent is not known"
    elif not fit.ok and fit.tokens_over:
        reason = f"{about} tokens more would pass the limit of {limit:,} by {fit.tokens_over:,}"
    elif not fit.ok:
        share = share_of(fit.level_after, record.ladder, limit)
        reached = words_of(fit.level_after, share, limit)
        reason = f"{about} tokens more would reach the level {reached}, which asks to return"
    elif not is_known:
        verdict, reason = UNKNOWN, "how full the window is now is not known yet"
    elif is_lower_bound(record):
        verdict = UNKNOWN
        reason = "the window was compacted to an unknown size; the next reply shows it"
    else:
        reason = f"{about} tokens more lead to {after:,} of {limit:,}"
    return Fitting(
        verdict=verdict,
        reason=reason,
        needed_tokens=needed,
        needed_tokens_are_estimated=is_estimate,
        tokens_after=after if is_known else UNKNOWN,
        # A lower bound that passes a level has reached it, whatever else the window holds.
        level_after=(fit.level_after if is_known or not fit.ok else None) or UNKNOWN,
        limit_tokens=_or_unknown(limit),
        tokens_over=fit.tokens_over if verdict != UNKNOWN else UNKNOWN,
    )


def _read_text(path: str, cwd: str | None) -> str:
    """Return the text of a file below an agent's directory: the server may read more than it."""
    if not cwd:
        raise ValueError("the working directory of this agent is not known; give characters")
    root = os.path.realpath(cwd)
    # Links are followed first: one below the directory may lead out of it.
    real = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath([root, real]) != root:
        raise ValueError(f"{sanitize(path)} is not below {sanitize(root)}; give characters")
    # A pipe would be waited for.
    fd = os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{sanitize(path)} is no regular file")
        if found.st_size > MAX_FILE_BYTES:
            raise ValueError(
                f"{sanitize(path)} has {found.st_size:,} bytes: no window holds it; read parts"
            )
        data = file.read(MAX_FILE_BYTES)
    if b"\0" in data:
        raise ValueError(f"{sanitize(path)} is no text")
    return data.decode("utf-8", "replace")


def _plan(record: StateRecord) -> Plan:
    tasks = [
        Task(name=_name(one["name"]), status=one["status"], result=_name(one.get("result")))
        for one in record.tasks or ()
    ]
    total = record.tasks_total or 0
    return Plan(
        agent_id=record.agent_id,
        tasks=tasks,
        tasks_completed=record.tasks_completed,
        tasks_total=total,
        current_task=_name(record.current_task),
        unnamed_tasks=max(0, total - len(tasks)),
    )


def _or_unknown(value: _Value | None) -> _Value | Unknown:
    return UNKNOWN if value is None else value


def _text(value: str | None) -> str:
    return "" if value is None else sanitize(value, max_chars=_MAX_TEXT_CHARS)


def _name(value: str | None) -> str:
    """Return a name as it is stored, so that it can be given back; JSON has no lone surrogates."""
    return "" if value is None else value.encode("utf-8", "replace").decode("utf-8")
