"""Carries a job of a coding agent across fresh contexts, in one workspace, one context at a time.

Built on `Fleet.supervise`: a context is a job of it. What the supervisor cannot know is here: how
the client ended, what it said last, what it cost, and whether the provider lets it go on.
"""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ultramon.context.ladder import FORCE_RETURN
from ultramon.errors import AgentNotFoundError, StateError, WorkspaceError
from ultramon.fleet.children import process_facts
from ultramon.fleet.fleet import Fleet
from ultramon.fleet.item_pool import ASSIGNED, VERIFIED
from ultramon.fleet.jobs import make_event
from ultramon.monitor.handoff import HandoffRecord, bounded_text
from ultramon.relay.briefing import Briefing
from ultramon.relay.choices import LEVELS, task_name
from ultramon.relay.context_process import (
    ContextProcess,
    Continuation,
    end_left_over,
    find_leader,
)
from ultramon.relay.context_record import ContextRecord, ContextRecords
from ultramon.relay.item_names import ItemNames
from ultramon.relay.launchers.outcome import (
    COMPLETED,
    CUT_OFF,
    FAILED,
    LIMITED,
    OVERFLOWED,
    USAGE,
)
from ultramon.relay.result import RelayResult, Stop, counted
from ultramon.relay.run_lock import run_lock
from ultramon.relay.run_reader import RunReader, number_of
from ultramon.relay.verification import CommandCheck
from ultramon.state.models import is_whole
from ultramon.state.plan import DONE
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.timestamps import clock_time

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from ultramon.backends.base import Backend
    from ultramon.fleet.jobs import Job
    from ultramon.fleet.supervisor_result import ItemCounts, SupervisorEvent
    from ultramon.relay.choices import RelayChoices
    from ultramon.relay.clients import Clients
    from ultramon.relay.launchers.outcome import ContextOutcome, ProviderLimit
    from ultramon.relay.workspace import RelayWorkspace
    from ultramon.state.record import StateRecord

GOAL = "(the goal)"
"""The one item of a job without a list, where the agent names its own tasks."""
MAX_REFUSED_CONTEXTS = 3
"""So many contexts in a row with refused calls and without progress end the run."""
MAX_RESTARTS = 3
FIRST_LIMIT_PAUSE_SECONDS = 60.0
LONGEST_LIMIT_PAUSE_SECONDS = 900.0
"""Where the provider does not say when its limit ends: doubled each time."""
LAST_HOOK_SECONDS = 2.0
"""So long the hook of its end may run on after a client; then the relay stores the end."""
_POLL_SECONDS = 0.5
_GO_ON = "Go on where you were: the provider takes requests again."
_MAX_ERROR_CHARS = 500


class Relay:
    """One call of a relay: a new run, or one that goes on.

    Args:
        run: Its name.
        choices: What was asked for.
        clients: What starts contexts; `AgentLauncher.prepare` is called here.
        workspace: Where it works.
        backend: The store; the directory of its states is that of the launcher's hooks.
        tell: Called with a line about each step.
        first_pause_seconds: The first pause at a limit whose end nobody knows.
        is_single: Whether there is one context, which nobody asks to hand over: for a comparison.

    Attributes:
        contexts: The contexts so far, in the order of their start.
        counts: The items after the last step; None before the first.
    """

    def __init__(
        self,
        run: str,
        choices: RelayChoices,
        clients: Clients,
        workspace: RelayWorkspace,
        backend: Backend,
        *,
        tell: Callable[[str], object],
        first_pause_seconds: float = FIRST_LIMIT_PAUSE_SECONDS,
        is_single: bool = False,
    ) -> None:
        self._run = run
        self._choices = choices
        self._clients = clients
        self._workspace = workspace
        self._backend = backend
        self._tell = tell
        self._first_pause_seconds = first_pause_seconds
        self._is_single = is_single
        self.counts: ItemCounts | None = None
        self._items = _items_of(choices, clients.uses_sdk)
        self._files = ContextRecords(workspace.folder)
        self.contexts: list[ContextRecord] = []
        self._numbers = {name: number for number, name in enumerate(self._items, 1)}
        self._fleet = Fleet(run, backend=backend, poll_interval_seconds=_POLL_SECONDS)
        self._view = RunReader(backend, run)
        self._check: CommandCheck | None = None
        if choices.verify is not None:
            environ = {**os.environ, "ULTRAMON_RELAY": run}
            self._check = CommandCheck(
                choices.verify, workspace.path, choices.verify_seconds, environ
            )
        self._briefing = Briefing(
            choices.words,
            self._items,
            self._view,
            workspace,
            self._check,
            has_items=choices.items is not None,
            uses_sdk=clients.uses_sdk,
            is_single=is_single,
        )
        self._stop: Stop | None = None
        self._is_stopping = False
        self._refused_in_a_row = 0
        self._has_estimated = False
        self._progress: dict[str, set[str]] = {}

    def run(self) -> RelayResult:
        """Go on until every item is settled, or there is a reason to stop; return what became.

        Raises:
            StateError: The store refused, or another relay works on this run.
            WorkspaceError: git refused.
        """
        with run_lock(self._workspace.folder), self._checking():
            self.contexts = self._files.all()
            self._choices.save(self._workspace.folder)
            for launcher in self._clients:
                launcher.prepare()
            self._files.prepare()
            self._keep_missing()
            choices = self._choices
            result = self._fleet.supervise(
                self._spawn,
                list(self._items),
                verify=None if self._check is None else self._verify,
                enforce=not self._is_single,
                grace_seconds=choices.grace_seconds,
                max_restarts=MAX_RESTARTS,
                max_contexts=max(0, choices.max_contexts - len(self.contexts)),
                deadline_seconds=choices.deadline_seconds,
                on_event=self._follow,
                adopt=self._adopt,
                item_of=ItemNames(self._items).find,
            )
            return RelayResult(
                run=self._run,
                work=result,
                has_items=choices.items is not None,
                is_checked=self._check is not None,
                # Whatever it was, nothing was left to be stopped.
                stop=(self._stop or Stop.of(result, choices)) if result.left else None,
                contexts=tuple(self.contexts),
                compactions=sum(max(0, one.epoch - 1) for one in self._view.sessions()),
                tasks=self._view.tasks() if choices.items is None else None,
                workspace=self._workspace.summarise(),
            )

    @contextmanager
    def _checking(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._fleet.close()
            if self._check is not None:
                self._check.close()

    def _verify(self, name: str) -> bool:
        assert self._check is not None
        return self._check(self._items.get(name, name))

    # --- contexts

    def _spawn(self, job: Job) -> ContextProcess:
        """Start the context of a job."""
        number = number_of(job.agent_id)
        prompt = self._briefing.write(job, number, self.contexts)
        record = ContextRecord(
            number,
            str(uuid.uuid4()),
            SYSTEM_CLOCK.now(),
            self._fingerprint(),
            agent=self._clients.next_name(),
        )
        process = self._start(record, prompt, job.agent_id, job.env)
        self.contexts.append(record)
        count = sum(name in self._items for name in job.items)
        what = f": {counted(count, 'item')}" if self._choices.items is not None else ""
        who = f" with {record.agent}" if len(self._choices.agents) > 1 else ""
        self._tell(f"context {number} begins{who}{what}")
        return self._watch(record, job.agent_id, job.env, process)

    def _start(
        self,
        record: ContextRecord,
        prompt: str,
        agent_id: str,
        environ: dict[str, str],
        *,
        resumes: bool = False,
    ) -> subprocess.Popen[bytes]:
        command = self._clients.of(record.agent).command(
            prompt,
            cwd=self._workspace.path,
            session_id=record.session_id,
            environ=environ,
            resumes=resumes,
        )
        # Before the process: another relay that finds it knows its output.
        self._files.save(record)
        return command.start(self._files.output(record), self._files.errors(record))

    def _watch(
        self,
        record: ContextRecord,
        agent_id: str,
        environ: dict[str, str],
        process: subprocess.Popen[bytes] | None,
        *,
        pid: int = 0,
    ) -> ContextProcess:
        return ContextProcess(
            process,
            lambda code: self._end(record, agent_id, environ, code),
            lambda code, seconds: self._has_settled(agent_id, code, seconds),
            pid=pid,
        )

    def _has_settled(self, agent_id: str, code: int | None, seconds: float) -> bool:
        """Whether the hook that stores the end of a session is done: no client waits for it."""
        if self._clients.uses_sdk or seconds > LAST_HOOK_SECONDS:
            return True
        if code is not None and code < 0:
            return True  # a client that was killed calls none
        state = self._state(agent_id)
        return state is None or not state.active

    def _adopt(self, agent_id: str) -> ContextProcess | None:
        """Take over a context of a relay before this one: one that runs, or its end."""
        number = number_of(agent_id)
        record = next((one for one in self.contexts if one.number == number), None)
        if record is None:
            return None
        environ = self._fleet.env(agent_id)
        pid = self._find_process(agent_id)
        if pid:
            self._tell(f"context {number} still runs, and goes on")
        return self._watch(record, agent_id, environ, None, pid=pid)

    def _find_process(self, agent_id: str) -> int:
        """Return the process of a context that another relay started; 0 when it has ended."""
        self._view.read()
        context = self._view.pool.contexts.get(agent_id)
        known = None if context is None else context.process
        if known is None:
            # That relay was killed between the start and the note of it.
            return find_leader(self._marks(agent_id)) or 0
        facts = process_facts(known["pid"])
        is_same = facts["pidStartedAt"] and all(known[name] == facts[name] for name in facts)
        return known["pid"] if is_same else 0

    def _marks(self, agent_id: str) -> dict[str, str]:
        """Return the variables that only processes of one context have."""
        environ = self._fleet.env(agent_id)
        names = ("ULTRAMON_AGENT_ID", "ULTRAMON_RUN", "ULTRAMON_BACKEND")
        return {"ULTRAMON_RELAY": self._run, **{name: environ[name] for name in names}}

    # --- how a context ends

    def _end(
        self, record: ContextRecord, agent_id: str, environ: dict[str, str], code: int | None
    ) -> Continuation | None:
        """Take in how a process of a context ended, before the supervisor does."""
        end_left_over(self._marks(agent_id))
        outcome = self._outcome(record, code)
        if record.ended_parts < record.parts:  # else an earlier relay was killed behind this
            fingerprint = self._fingerprint()
            record.is_idle = fingerprint is not None and fingerprint == record.fingerprint
            record.ended_at = SYSTEM_CLOCK.now()
            record.add(outcome)
            self._files.save(record)
        if outcome.end != CUT_OFF:
            # A client may call no hook where a request fails: its agent would be lost.
            failed_with = None if outcome.ended_well else outcome.reason or outcome.error
            self._clients.of(record.agent).end_session(agent_id, environ, failed_with)
        if outcome.end == LIMITED and outcome.limit is not None and not self._is_stopping:
            following = self._pause(record, agent_id, environ, outcome, outcome.limit)
            if following is not None:
                return following
        self._close(record, agent_id, outcome)
        return None

    def _close(self, record: ContextRecord, agent_id: str, outcome: ContextOutcome) -> None:
        """Judge how a context ended, and store its handoff."""
        state = self._state(agent_id)
        if not self._clients.uses_sdk:
            if not self._is_stopping:
                self._judge_client(record, outcome, state)
            if state is not None and not state.active:
                self._leave_handoff(record, outcome, state)

    def _fingerprint(self) -> str | None:
        try:
            return self._workspace.fingerprint()
        except WorkspaceError as error:
            self._tell(str(error))
            return None

    def _outcome(self, record: ContextRecord, code: int | None) -> ContextOutcome:
        path = self._files.output(record)
        try:
            with open(path, "rb") as lines:
                return self._clients.of(record.agent).read_outcome(lines, code)
        except FileNotFoundError:  # killed between its record and its start
            return self._clients.of(record.agent).read_outcome((), code)

    def _judge_client(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord | None
    ) -> None:
        """Stop where another context would fare no better."""
        if outcome.end == FAILED:
            self._stop_for(Stop.failed(outcome.error or outcome.reason))
        elif outcome.end == CUT_OFF and outcome.session_id is None and (outcome.exit_code or 0) > 0:
            self._stop_for(Stop.failed(self._last_error(record) or f"exit {outcome.exit_code}"))
        elif outcome.ended_well and state is None:
            words = "the client ended and none of the relay's hooks ran: see `ultramon doctor`"
            self._stop_for(Stop.failed(words))

    def _last_error(self, record: ContextRecord) -> str:
        try:
            with open(self._files.errors(record), "rb") as file:
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
        is_reached = self._choices.items is None and self._has_reached_goal(record, outcome, state)
        if is_reached:
            tasks.append({"name": GOAL, "status": DONE, "result": None})
        elif name := self._lone_item(record, outcome, state):
            tasks.append({"name": name, "status": DONE, "result": None})
        own = state.handoff.get("notes") if isinstance(state.handoff, dict) else None
        # Words alone are no progress: an agent that only talks would go on for ever. What was
        # denied is no item's fault, and counted by itself.
        has_worked = (
            is_reached
            or not record.is_idle
            or bool(outcome.refused_count)
            or any(task["status"] == DONE for task in tasks)
        )
        # After a failure the last text may be the client's words about it.
        said = outcome.last_text if outcome.ended_well else None
        notes = "\n\n".join(text for text in (said, own) if text)
        if outcome.end == LIMITED:
            # No item is to blame for it, and words are what counts as progress without one.
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
            "handoff_ready", source=f"relay:{self._run}", at=now, n=1, handoff=handoff.to_json()
        )
        self._backend.append_events([event])

    def _lone_item(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord
    ) -> str | None:
        """Return the one item of a context that worked and ended its turn without a task list.

        Models keep none for a single step: the end of the turn is the claim.
        """
        if self._choices.items is None or state.tasks or record.is_idle:
            return None
        # Asked to hand over, or refused what it needs, it has not said that it is done.
        if outcome.end != COMPLETED or state.action != "none" or outcome.refused_count:
            return None
        self._view.read()
        context = self._view.pool.contexts.get(state.agent_id)
        held = list(self._view.pool.held_by(context, ASSIGNED)) if context is not None else []
        return held[0][0] if len(held) == 1 else None

    def _has_reached_goal(
        self, record: ContextRecord, outcome: ContextOutcome, state: StateRecord
    ) -> bool:
        """Whether a job without a list has come to its end with this context."""
        open_count = (state.tasks_total or 0) - state.tasks_completed
        if outcome.end != COMPLETED or open_count or self._is_stopping:
            return False
        if outcome.refused_count and record.is_idle:
            return False
        # Asked to hand over, a context without a plan has not said that it is done.
        asking = (LEVELS[self._choices.hand_over_at], FORCE_RETURN)
        is_asked = state.action in asking and not self._is_single
        return bool(state.tasks_total) or not is_asked

    def _pause(
        self,
        record: ContextRecord,
        agent_id: str,
        environ: dict[str, str],
        outcome: ContextOutcome,
        limit: ProviderLimit,
    ) -> Continuation | None:
        """Wait until the provider takes requests again; then the same session goes on.

        None where a usage limit ends this context, for another client is free. One that is free
        before this limit has ended goes on as well.
        """
        now = SYSTEM_CLOCK.now()
        pause = self._first_pause_seconds * 2 ** min(record.parts - 1, 20)
        pause = min(pause, LONGEST_LIMIT_PAUSE_SECONDS)
        until = limit.ends_at if limit.ends_at is not None and limit.ends_at > now else now + pause
        if limit.kind == USAGE:
            self._clients.limit(record.agent, until)
            if (other := self._clients.free_beside(record.agent)) is not None:
                self._tell(
                    f"context {record.number} met the usage limit of {record.agent}, which ends "
                    f"{clock_time(until, now)}: {other} goes on"
                )
                return None
        self._tell(
            f"context {record.number} waits for the {limit.kind} limit until "
            f"{clock_time(until, now)}"
        )

        def is_over() -> bool:
            if self._is_stopping:
                return True
            if limit.kind != USAGE or self._clients.free_beside(record.agent) is None:
                return False
            self._close(record, agent_id, outcome)
            return True

        def start() -> subprocess.Popen[bytes]:
            record.parts += 1
            process = self._start(record, _GO_ON, agent_id, environ, resumes=True)
            with suppress(StateError):  # without it another relay would end this process
                self._note_process(agent_id, process.pid)
            self._tell(f"context {record.number} goes on")
            return process

        # By the clock, which goes on while the machine is suspended.
        return Continuation(lambda: SYSTEM_CLOCK.now() >= until, is_over, start)

    def _note_process(self, agent_id: str, pid: int) -> None:
        """Tell other relays of the process that goes on with a context."""
        source, at = f"relay:{self._run}", SYSTEM_CLOCK.now()
        facts = process_facts(pid)
        event = make_event(self._run, agent_id, "context_spawned", source=source, at=at, **facts)
        self._backend.append_events([event])

    def _state(self, agent_id: str) -> StateRecord | None:
        try:
            return self._backend.load(agent_id).record
        except (AgentNotFoundError, StateError):
            return None

    # --- steps of the supervisor

    def _stop_for(self, stop: Stop) -> None:
        if self._stop is None:
            self._stop = stop
        self._fleet.stop()

    def _follow(self, event: SupervisorEvent) -> None:
        """Follow a step of the supervisor: say it, keep what is verified, watch the budget."""
        self.counts = event.counts
        if event.name == "stopping":
            self._is_stopping = True
            return
        assert event.agent_id is not None
        made = self._progress.setdefault(event.agent_id, set())
        if event.name == "verified" or (event.name == "claimed" and self._check is None):
            made.update(event.items)
            self._keep(event)
        elif event.name == "rejected":
            for name in event.items:
                how = self._check.failures.get(self._items.get(name, name)) if self._check else None
                self._tell(f"not confirmed: {name}" + (f" ({how})" if how else ""))
        elif event.name == "set_aside":
            for name in event.items:
                self._tell(f"set aside: {name}")
        elif event.name == "ended":
            self._context_ended(event, made)

    def _keep(self, event: SupervisorEvent) -> None:
        counts = event.counts
        done = counts.verified + (counts.claimed if self._check is None else 0)
        for number, name in enumerate(event.items, done - len(event.items) + 1):
            self._tell(f"{event.name}: {name} ({number} of {counts.assigned})")
            if event.name == "verified":
                try:
                    self._workspace.keep(self._label(name), f"{name} verified")
                except WorkspaceError as error:
                    self._tell(f"{name} is not kept: {error}")

    def _label(self, name: str) -> int:
        return self._numbers.get(name, 0)

    def _keep_missing(self) -> None:
        """Keep what was verified in the moment in which an earlier relay was killed."""
        self._view.read()
        verified = [name for name, _ in self._view.pool.with_status(VERIFIED)]
        kept = self._workspace.kept() if verified else {}
        for name in verified:
            if str(self._label(name)) not in kept:
                self._workspace.keep(self._label(name), f"{name} verified")

    def _context_ended(self, event: SupervisorEvent, made: set[str]) -> None:
        assert event.agent_id is not None
        number = number_of(event.agent_id)
        record = next((one for one in self.contexts if one.number == number), None)
        cost = "" if record is None or record.cost_usd is None else f", ${record.cost_usd:.2f}"
        self._tell(f"context {number} ended: {event.reason}{cost}")
        if record is None:
            return
        has_changed = self._workspace.is_checkpointed and not record.is_idle
        is_blocked = bool(record.refused_count) and not made and not has_changed
        self._refused_in_a_row = self._refused_in_a_row + 1 if is_blocked else 0
        if self._refused_in_a_row >= MAX_REFUSED_CONTEXTS and event.counts.left:
            launcher = self._clients.of(record.agent)
            advice = dict.fromkeys(map(launcher.describe_refused, record.refused))
            self._stop_for(Stop.refused(record.refused_count, [one for one in advice if one]))
        self._check_budget(event, made)

    def _check_budget(self, event: SupervisorEvent, made: set[str]) -> None:
        spent = sum(one.cost_usd or 0.0 for one in self.contexts)
        counts = event.counts
        if not self._has_estimated and spent and made and counts.left:
            self._has_estimated = True
            whole = spent / (counts.assigned - counts.left) * counts.assigned
            self._tell(f"${spent:.2f} so far at list price; at this rate ${whole:.2f} for all")
        limit = self._choices.max_usd
        if limit is not None and spent >= limit and counts.left:
            self._stop_for(Stop.budget(f"${spent:.2f} of ${limit:.2f} are spent"))


_REASONS = {"force_return": "threshold_critical", "prepare_handoff": "threshold_warning"}


def _reason(outcome: ContextOutcome, state: StateRecord) -> str:
    """Return why a context handed over."""
    if outcome.end == OVERFLOWED:
        return "context_overflow"
    if outcome.end == LIMITED:
        return "error"
    return _REASONS.get(state.action, "task_complete")


def _items_of(choices: RelayChoices, uses_sdk: bool) -> dict[str, str]:
    """Return the items by the names that the agents know them by."""
    if choices.items is None:
        return {choices.goal if uses_sdk else GOAL: choices.goal}
    return {item if uses_sdk else task_name(item): item for item in choices.items}
