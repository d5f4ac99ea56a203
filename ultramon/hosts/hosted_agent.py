"""One session or subagent as an agent: the events of the client change its state.

Standard library only. Works on a state inside its lock; nothing here reads or writes a file.
"""

from __future__ import annotations

from ultramon.context.gauge import Gauge
from ultramon.context.ladder import FORCE_RETURN
from ultramon.context.tracker import ContextTracker
from ultramon.state.record import WAITS_FOR
from ultramon.system.ids import is_agent_id
from ultramon.system.lean_os import os
from ultramon.system.processes import boot_seconds, process_started_at, this_host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.hosts.records import LastReading, Report
    from ultramon.hosts.store import HookStore
    from ultramon.state.record import StateRecord

_DONE = "done"
WORKING = "working"
IN_TOOL = "in_tool"
WAITING = "waiting"

PREDECESSORS = "predecessors"
SUCCESSOR = "successorId"
PENDING_ENDS = "pendingEnds"
"""The subagents whose end is not reported yet, by id; missing when there are none."""
LEFT_TASKS = "leftTasks"
LAST_TEXT = "lastText"
STOP_REASON = "stopReason"
"""Of a subagent that ended: facts for its launcher, see `ultramon.hosts.child_ends`."""
LAST_PROMPT = "lastPrompt"
"""What a person wrote last: its text, and its length before it was cut."""
ASKED = "asked"
"""Where returns are enforced: since when the agent knows that it is asked to return."""
ENDED_CALLS = "endedCalls"
ENFORCED = "enforced"
WOULD_ENFORCE = "wouldEnforce"
TURN_ENDED = "turnEnded"
"""See `ultramon.hosts.enforcement`, which ended the turn, or (a dry run) would have."""
NOT_RETURNED = "ended by ultramon: asked to return, and went on"
"""Reason of an agent that was ended."""
IS_CLEARED = "isCleared"
"""Set until everything of the predecessor is moved."""

HEEDED_REQUEST = "heededRequest"
"""The last request to hand over that the agent was shown."""

SILENT_CALLS = 5
"""So many tool calls pass between two warnings of the same level."""
IS_COMPACTED = "isCompacted"
"""Set until the agent has read of a compaction."""
_COMPACTION_ID = "compactionId"
_PROMPTS = "prompts"
"""How many the conversation holds, counted no further than the client needs to compact it."""
_CALL_ENDED_AT = "callEndedAt"
_RUNS_NOTHING_SINCE = "runsNothingSince"
"""When the client made the last call that ended a tool's, and the last that left none running."""
_ENDED_EARLY = "endedEarly"
"""Tool calls whose end was reported before their start."""
_MAX_RUNNING = 32
_MAX_ENDED_CALLS = 64
_MAX_PREDECESSORS = 8
_MAX_TASK_CHARS = 120
_MAX_LABEL_CHARS = 80
_MAX_MODEL_CHARS = 200
_MAX_LEFT_NAMES = 3
_MAX_LAST_CHARS = 300
_MAX_PROMPT_CHARS = 4_000


class LateStartError(Exception):
    """The start of a tool call that is over was reported; the state must stay as it is."""


class HostedAgent:
    """The state of one agent during one hook call.

    Args:
        call: What this call is made with: the client, its environment, the choices, the time.
        record: The state; changed in place. One that was never stored has generation 0.
    """

    def __init__(self, call: HookStore, record: StateRecord) -> None:
        self.record = record
        self._call = call
        self._host = host = call.host
        self._windows = call.windows()
        memory = record.extra.get(host.memory_field)
        self.memory: dict[str, Any] = memory if isinstance(memory, dict) else {}
        record.extra[host.memory_field] = self.memory
        self.gauge = Gauge(
            record,
            call.installed.ladder,
            ContextTracker(),
            lambda: call.now,
            memory=self.memory,
            settings={"explicit_limit_tokens": call.installed.context_limit_tokens},
            takes_repeats=True,
        )

    def start(self, session_id: str, parent_id: str | None, cwd: str | None) -> None:
        """Fill the state of an agent at its first event, and note its start."""
        record, environ, now = self.record, self._call.environ, self._call.now
        record.run = _id_or(environ.get("ULTRAMON_RUN"), self._host.name)
        record.session_id = session_id
        record.parent_id = parent_id or _id_or(environ.get("ULTRAMON_PARENT_ID"), None)
        record.host = self._host.name
        record.cwd = cwd
        record.active = True
        record.phase = WORKING
        record.started_at = record.epoch_started_at = now
        record.grace_seconds = 30.0
        record.generation = record.epoch = 1
        record.tokens_source = "estimated"
        record.limit_source = "unknown"
        record.action = "none"
        record.announced = {"epoch": 1, "rungs": {}}
        record.by_source = {}
        pane = environ.get("TMUX_PANE")
        if pane and parent_id is None:
            self.memory["tmuxPane"] = pane[:32]
        self._own_process()
        self.resolve_limit()
        self.gauge.event("agent_started")

    def _own_process(self) -> bool:
        """Take the client's process as the agent's; return whether it is another one now."""
        record = self.record
        if self.is_session:
            from ultramon.hosts.session_environment import keep

            keep(self._host, self.memory, self._call.environ)
        pid = self._host.process_id(self._call.environ)
        started = None if pid is None else process_started_at(pid)
        if started is None:
            return False
        host = this_host()
        process = pid, started, host.boot_id, host.hostname
        if process == process_of(record):
            return False
        record.pid, record.pid_started_at, record.boot_id, record.hostname = process
        return True

    @property
    def is_session(self) -> bool:
        """Whether it is a session, and no subagent of one."""
        return self.record.agent_id == self.session_agent_id

    @property
    def session_agent_id(self) -> str:
        """The agent that its session is; that of a session is itself."""
        return self._call.agent_of(self.record.session_id)

    def has_prompts(self) -> bool:
        """Return whether a person submits prompts: not to a subagent, nor without a terminal."""
        return self.is_session and self._host.has_prompts(self._call.environ)

    def resume(self) -> None:
        """Continue an agent that ended, or whose process is another one now."""
        record = self.record
        is_other = self._own_process()
        if record.active and not is_other:
            return
        record.generation += 1
        for name in (SUCCESSOR, LEFT_TASKS, LAST_TEXT, STOP_REASON, TURN_ENDED):
            self.memory.pop(name, None)
        record.active, record.outcome, record.exit = True, None, None
        self.gauge.event("agent_started")

    @property
    def predecessors(self) -> list[str]:
        """The cleared sessions that this one continues, the last one first."""
        return predecessors(self.memory)

    def follow(self, old: HostedAgent) -> None:
        """Continue a session that was cleared: with its parent, its label, and its inbox."""
        record = self.record
        record.parent_id = old.record.parent_id or record.parent_id
        record.label = old.record.label or record.label
        names = [old.record.agent_id, *old.predecessors]
        self.memory[PREDECESSORS] = names[:_MAX_PREDECESSORS]
        for name in (ENFORCED, WOULD_ENFORCE):
            if name in old.memory:
                self.memory.setdefault(name, old.memory[name])

    def give_way(self, successor_id: str, report: Report | None) -> None:
        """Name the successor of a session that was cleared; end it if its own end is missing."""
        if self.record.active:
            self.take(report)
            self.finish("clear")
        self.record.label = None
        self.memory[SUCCESSOR] = successor_id

    def resolve_limit(self) -> None:
        """Work out the limit from the settings of the client and the table of models."""
        from ultramon.context.limits import window_for_model

        record, memory = self.record, self.memory
        window = self._host_window()
        if window is not None:
            memory["windowTokens"] = window
        else:
            memory.pop("windowTokens", None)
        trigger, memory["refusalTokens"] = self._host.compaction_limits(
            self._call.environ,
            self._host.project(self._call.environ) or record.cwd,
            record.model,
            window or window_for_model(record.model, self._host.name),
        )
        can_compact = memory.get(_PROMPTS, 0) >= self._host.prompts_before_compaction
        memory["triggerTokens"] = trigger if can_compact else None
        memory["installedAt"] = self._call.installed.installed_at
        self.gauge.resolve_limit()

    def _host_window(self) -> int | None:
        reported_tokens = self._windows.get(self.record.model or "")
        return self._host.window_tokens(self._call.environ, reported_tokens)

    def set_model(self, model: str | None) -> None:
        """Note the model, and what follows from another one or from another installation."""
        record, memory = self.record, self.memory
        model = model and model[:_MAX_MODEL_CHARS]
        is_same = model is None or model == record.model
        if (
            is_same
            and memory.get("installedAt") == self._call.installed.installed_at
            and memory.get("windowTokens") == self._host_window()
        ):
            return
        if not is_same:
            record.model = model
            memory.pop("highestTokens", None)
        self.resolve_limit()

    def take(self, report: Report | None) -> bool:
        """Take what a transcript reports; return whether it was new enough."""
        if report is None:
            return False
        self.set_model(report.requested_model or report.model)
        # One without a time may belong to a window that is gone.
        return report.at is not None and self.gauge.take(
            report.tokens, report.output_tokens, report.at
        )

    def take_last(self, report: Report | None) -> None:
        """Take the last reply of a turn, and remember which it was: another one ends the next."""
        self.take(report)
        if report is not None:
            self.memory["lastReplyAt"] = report.at

    def name(self, detail: str) -> None:
        """Name the agent after its project and what it does, once."""
        if self.record.label is None and detail:
            folder = os.path.basename((self.record.cwd or "").rstrip("/"))
            label = f"{folder}: {one_line(detail)}" if folder else one_line(detail)
            self.record.label = label[:_MAX_LABEL_CHARS]

    def begin_turn(self, prompt: str) -> None:
        """A prompt was submitted; empty for one that the client wrote itself, which is no task."""
        self._run_nothing(WORKING)
        self.memory.pop(TURN_ENDED, None)
        self.note_failure("")
        if prompt:
            self.count_prompt()
            self.begin_task(prompt)

    def count_prompt(self) -> None:
        """Note that the conversation holds one more prompt, where compaction depends on it."""
        least, count = self._host.prompts_before_compaction, self.memory.get(_PROMPTS, 0) + 1
        if count <= least:
            self.memory[_PROMPTS] = count
            if count == least:
                # What a single prompt has grown to is no sign that the client does not compact.
                self.memory.pop("highestTokens", None)
                self.resolve_limit()

    def begin_task(self, task: str) -> None:
        """Note what the agent is to do, and name it after the first of its tasks.

        A task that it has begun in its own plan stays the current one.
        """
        self.name(task)
        if self.record.tasks:
            from ultramon.state.stored_plan import has_begun_task

            if has_begun_task(self.record):
                return
        self.record.current_task = one_line(task)[:_MAX_TASK_CHARS]

    def keep_prompt(self, prompt: str) -> None:
        """Keep what a person wrote, where pins were installed; else nothing of it stays."""
        if not self._call.installed.pins:
            self.memory.pop(LAST_PROMPT, None)
        elif prompt:
            self.memory[LAST_PROMPT] = {"text": prompt[:_MAX_PROMPT_CHARS], "chars": len(prompt)}

    def check_start(self, call_id: str | None) -> None:
        """Make sure that a tool call can still be running: a client need not wait for this report.

        Raises:
            LateStartError: It has ended, or its turn has.
        """
        memory, began_at = self.memory, self._call.began_at
        # A time of the future was noted before the machine was started again.
        latest = boot_seconds()
        is_over = began_at <= memory.get(_RUNS_NOTHING_SINCE, 0.0) <= latest
        if self._call.is_retry and call_id not in self._running():
            # The resident may have noted the start already, and another call its end.
            is_over |= began_at <= memory.get(_CALL_ENDED_AT, 0.0) <= latest
        if is_over or (call_id and call_id in memory.get(_ENDED_EARLY, ())):
            raise LateStartError(call_id)

    def tool_started(self, call_id: str | None) -> None:
        """A tool begins to run."""
        running = self._running()
        if call_id and call_id not in running:
            running.append(call_id)
            del running[:-_MAX_RUNNING]
        self.memory.pop(TURN_ENDED, None)  # the client never had the answer
        self.memory.pop(WAITS_FOR, None)
        self.record.phase = IN_TOOL

    def end_call(self, call_id: str | None) -> None:
        """A tool has run."""
        running, memory = self._running(), self.memory
        memory[_CALL_ENDED_AT] = self._call.began_at
        if call_id in running:
            running.remove(call_id)
        elif call_id and call_id not in (early := memory.setdefault(_ENDED_EARLY, [])):
            early.append(call_id)
            del early[:-_MAX_RUNNING]
        if call_id and self.must_return:
            ended = memory.setdefault(ENDED_CALLS, [])
            ended.append(call_id)
            del ended[:-_MAX_ENDED_CALLS]
        memory.pop(WAITS_FOR, None)
        self.record.phase = IN_TOOL if running else WORKING

    def wait(self, waits_for: str = "") -> None:
        """The client waits: for what `HookEvent.waits_for` names, else for the next prompt.

        Some clients do not wait for the hook that says so: what has begun since counts.
        """
        latest = boot_seconds()
        is_over = any(
            self._call.began_at < self.memory.get(name, 0.0) <= latest
            for name in (_RUNS_NOTHING_SINCE, _CALL_ENDED_AT)
        )
        if self.record.active and not is_over:
            self._run_nothing(WAITING)
            if waits_for:
                self.memory[WAITS_FOR] = waits_for

    def _running(self) -> list[str]:
        running = self.memory.setdefault("running", [])
        assert isinstance(running, list)
        return running

    def _run_nothing(self, phase: str) -> None:
        for name in ("running", _CALL_ENDED_AT, _ENDED_EARLY, WAITS_FOR):
            self.memory.pop(name, None)
        self.memory[_RUNS_NOTHING_SINCE] = self._call.began_at
        self.record.phase = phase

    def end(self, outcome: str, reason: str, error: str = "") -> None:
        """The agent has ended, for a reason that the client names or with an error."""
        record = self.record
        if not record.active:
            return
        self._run_nothing(WORKING)
        record.active, record.outcome = False, outcome
        exit = {"reason": reason, "error": error}
        record.exit = {name: text[:64] for name, text in exit.items() if text} or None
        if not self.is_session:
            self._note_left_tasks()
        self.gauge.event("agent_stopped", outcome=outcome)

    def end_by(self, reading: LastReading, reason: str) -> None:
        """End a subagent that left no result, as its transcript says; else for a reason."""
        self.take(reading.report)
        if not self.record.active:
            return
        if reading.error is not None:
            self.end("failed", "request failed", reading.error)
        elif reading.stop_reason is not None:
            self.end("cancelled", "stopped by a hook")
            self.memory[STOP_REASON] = one_line(reading.stop_reason)[:_MAX_LAST_CHARS]
        elif reading.stopped_at is not None:
            self.end("cancelled", "interrupted")
        else:
            self.end("cancelled", reason)
        if text := one_line(reading.text):
            self.memory[LAST_TEXT] = text[:_MAX_LAST_CHARS]

    def _note_left_tasks(self) -> None:
        """Note what is open in the plan now: its session may take these tasks over."""
        left = [
            one_line(str(task.get("name")))[:_MAX_TASK_CHARS]
            for task in self.record.tasks or ()
            if task.get("status") != _DONE
        ]
        if left:
            self.memory[LEFT_TASKS] = {"count": len(left), "names": left[:_MAX_LEFT_NAMES]}

    def note_failure(self, error: str) -> None:
        """Remember what a turn failed with, forget it when one did not."""
        if error:
            self.memory["failedWith"] = error[:64]
        else:
            self.memory.pop("failedWith", None)

    def finish(self, reason: str) -> None:
        """The session has ended, well unless its last turn failed."""
        failed = self.memory.pop("failedWith", "")
        if TURN_ENDED in self.memory:
            self.end("cancelled", NOT_RETURNED)
        self.end("failed" if failed else "completed", reason, failed)

    def compacted(self, event: str) -> None:
        """Start an epoch at the first of the two events that follow one compaction.

        Args:
            event: Which of the two came; old clients send only one of them.
        """
        if self.memory.pop("compactedBy", event) != event:
            return
        self.memory["compactedBy"] = event
        self._begin_window(None)

    def follow_compaction(self, reading: LastReading) -> None:
        """Start an epoch where a transcript shows a compaction that no event has reported."""
        if not self.lacks_compaction(reading):
            return
        self.memory[_COMPACTION_ID] = reading.compaction_id
        # Before the first reading there is no window that could have been compacted.
        if self.record.measured_at is not None:
            self.memory.pop("highestTokens", None)
            self._begin_window(reading.compacted_at)

    def lacks_compaction(self, reading: LastReading) -> bool:
        """Return whether a transcript shows a compaction that the state does not know yet."""
        return reading.compaction_id not in (None, self.memory.get(_COMPACTION_ID))

    def _begin_window(self, at: float | None) -> None:
        self.memory.pop("warned", None)
        self.memory.pop("isLagging", None)
        self.memory[IS_COMPACTED] = True
        self.gauge.begin_epoch("compaction", at=at)

    def compacting(self) -> None:
        """A compaction may follow. It may also be interrupted, so nothing has changed yet."""
        self.memory.pop("compactedBy", None)

    @property
    def must_return(self) -> bool:
        """Whether the agent is asked to return, at a level where that is enforced."""
        level = self._call.installed.enforce
        rank = self.gauge.rank
        return (
            level is not None
            and self.record.action == FORCE_RETURN
            and rank(self.record.threshold_status or "") >= rank(level)
        )

    def must_warn(self, *, is_call: bool, message_id: str | None) -> bool:
        """Decide whether to warn the agent of its level now, and remember by which process.

        The client may never get the answer: the hook is killed, or the server that takes requests.
        Until `has_warned`, the warning counts only while that process lives.

        Args:
            is_call: Whether a tool call ended; only those are counted.
            message_id: The reply that made these calls: one batch is warned once.
        """
        record, memory = self.record, self.memory
        level, base = record.threshold_status, self._call.installed.ladder.base
        if record.action != FORCE_RETURN:
            memory.pop(ASKED, None)
        if level is None:
            return False  # what was warned of counts when the level is known again
        if level == base:
            memory.pop("warned", None)
            return False
        warned = memory.get("warned")
        if not isinstance(warned, dict) or warned.get("epoch") != record.epoch:
            warned = {"epoch": record.epoch, "level": base, "silentCalls": 0, "messageId": None}
            memory["warned"] = warned
        rank = self.gauge.rank
        if rank(level) <= rank(warned["level"]) and not self._call.is_untold(warned.get("teller")):
            is_same_batch = message_id is not None and message_id == warned["messageId"]
            if is_call and not is_same_batch and rank(level) == rank(warned["level"]):
                warned["silentCalls"] += 1
            if rank(level) < rank(warned["level"]):
                warned.update(level=level, silentCalls=0)
            if warned["silentCalls"] <= SILENT_CALLS:
                return False
        warned.update(level=level, silentCalls=0, messageId=message_id, teller=self._call.teller())
        return True

    def has_warned(self) -> None:
        """The client has the answer with the warning."""
        warned = self.memory.get("warned")
        if isinstance(warned, dict) and warned.get("teller") == self._call.teller():
            del warned["teller"]
            asked = self.memory.get(ASKED)
            is_new = not isinstance(asked, dict) or asked.get("epoch") != self.record.epoch
            if is_new and self.must_return:
                self.memory[ASKED] = {"epoch": self.record.epoch, "at": self._call.now}


def predecessors(memory: dict[str, Any]) -> list[str]:
    """Return the cleared sessions that one continues, by what its state keeps."""
    names = memory.get(PREDECESSORS)
    return [name for name in names if is_agent_id(name)] if isinstance(names, list) else []


def process_of(record: StateRecord) -> tuple[int | None, str | None, str, str]:
    """Return what names an agent's process among those of all machines and boots."""
    return record.pid, record.pid_started_at, record.boot_id, record.hostname


def this_process() -> list[Any]:
    """Return what names the process that is to tell something, in a state."""
    return [os.getpid(), process_started_at(os.getpid())]


def is_gone(teller: object) -> bool:
    """Return whether the process that was to tell something ended before it did."""
    if not isinstance(teller, list) or len(teller) != 2 or type(teller[0]) is not int:
        return False
    return bool(process_started_at(teller[0]) != teller[1])


def one_line(text: str) -> str:
    """Return a text of several lines as one, without needless white space."""
    return " ".join(text[:1000].split())


def _id_or(value: str | None, otherwise: Any) -> Any:
    return value if is_agent_id(value) else otherwise
