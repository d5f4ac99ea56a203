"""One session or subagent as an agent: the events of the host change its state.

Standard library only. Works on a state inside its lock; nothing here reads or writes a file.
"""

from __future__ import annotations

import os

from ultramon.context.gauge import Gauge, known_tokens
from ultramon.context.ladder import FORCE_RETURN
from ultramon.context.tracker import ContextTracker
from ultramon.errors import StateError
from ultramon.hosts.calls.memory import HookMemory
from ultramon.system.ids import is_agent_id
from ultramon.system.processes import boot_seconds, process_started_at, this_machine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ultramon.context.gauge import Place
    from ultramon.hosts.calls.invocation import Invocation
    from ultramon.hosts.transcripts.records import LastReading, Report
    from ultramon.state.record import StateRecord

_DONE = "done"
WORKING = "working"
IN_TOOL = "in_tool"
WAITING = "waiting"

NOT_RETURNED = "ended by ultramon: asked to return, and continued"
"""Reason of an agent that was ended."""
CUT_TURN = "ended in the middle of its turn"
"""Reason of a session whose host took a signal, and then ended without ending the turn."""
SILENT_CALLS = 5
"""So many tool calls pass between two warnings of the same level."""
_MAX_ENDED_CALLS = 64
_MAX_TASK_CHARS = 120
_MAX_LABEL_CHARS = 80
_MAX_MODEL_CHARS = 200
_MAX_VERSION_CHARS = 80
_MAX_LEFT_NAMES = 3
_MAX_LAST_CHARS = 300
_MAX_PROMPT_CHARS = 4_000


class LateStartError(Exception):
    """The start of a tool call that is over was reported; the state must stay as it is."""


class HostedAgent:
    """The state of one agent during one hook call.

    Args:
        call: What this call is made with: the host, its environment, the choices, the time.
        record: The state; changed in place. One that was never stored has generation 0.
    """

    def __init__(self, call: Invocation, record: StateRecord) -> None:
        self.record = record
        self._call = call
        self._host = host = call.host
        self._windows = call.windows()
        self.memory = HookMemory.of(record.extra.get(host.memory_field))
        record.extra[host.memory_field] = self.memory.to_json()
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
            self.memory.tmux_pane = pane[:32]
        self._own_process()
        self.resolve_limit()
        self.gauge.event("agent_started")

    def _own_process(self) -> bool:
        """Take the host's process as the agent's; return whether it is another one now."""
        record = self.record
        if self.is_session:
            from ultramon.hosts.calls.session_environment import keep

            keep(self._host, self.memory, self._call.environ)
        pid = self._host.dialect.process_id(self._call.environ)
        started = None if pid is None else process_started_at(pid)
        if started is None:
            return False
        machine = this_machine()
        process = pid, started, machine.boot_id, machine.hostname
        if process == process_of(record):
            return False
        record.pid, record.pid_started_at, record.boot_id, record.hostname = process
        # Another process may be another version of the host.
        del self.memory.client_version
        return True

    @property
    def keeps_reminders(self) -> bool:
        """Whether another process that continues the conversation has what the agent has read."""
        return self._host.dialect.keeps_reminders

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
        return self.is_session and self._host.dialect.has_prompts(self._call.environ)

    def resume(self) -> None:
        """Continue an agent that ended, or whose process is another one now."""
        record = self.record
        is_other = self._own_process()
        if record.active and not is_other:
            return
        if is_other and not self.keeps_reminders:
            self.memory.forget_reminders()
        record.generation += 1
        self.memory.begin_life()
        record.active, record.outcome, record.exit = True, None, None
        self.gauge.event("agent_started")

    def follow(self, old: HostedAgent) -> None:
        """Continue a session that was cleared: with its parent, its label, and its inbox."""
        record = self.record
        record.parent_id = old.record.parent_id or record.parent_id
        record.label = old.record.label or record.label
        self.memory.follow(old.record.agent_id, old.memory)

    def end_for(self, successor_id: str, report: Report | None) -> None:
        """Name the successor of a session that was cleared; end it if its own end is missing."""
        if self.record.active:
            self.take(report)
            self.finish("clear")
        # Two agents of one label would be ambiguous where a person names one.
        self.record.label = None
        self.memory.successor_id = successor_id

    def resolve_limit(self) -> None:
        """Decide the limit from the settings of the host and the table of models."""
        from ultramon.context.limits import window_for_model

        record, memory = self.record, self.memory
        window = self._host_window()
        if window is not None:
            memory.window_tokens = window
        else:
            del memory.window_tokens
        trigger, memory.refusal_tokens = self._host.dialect.compaction_limits(
            self._call.environ,
            self._host.dialect.project(self._call.environ) or record.cwd,
            record.model,
            window or window_for_model(record.model, self._host.name),
        )
        can_compact = memory.prompts >= self._host.dialect.prompts_before_compaction
        # A limit that cannot act yet would warn a session of one prompt at half of its window.
        memory.trigger_tokens = trigger if can_compact else None
        memory.installed_at = self._call.installed.installed_at
        self.gauge.resolve_limit()

    def _host_window(self) -> int | None:
        reported_tokens = self._windows.get(self.record.model or "")
        return self._host.dialect.window_tokens(self._call.environ, reported_tokens)

    def set_model(self, model: str | None) -> None:
        """Note the model, and what follows from another one or from another installation."""
        record, memory = self.record, self.memory
        model = model and model[:_MAX_MODEL_CHARS]
        is_same = model is None or model == record.model
        if (
            is_same
            and memory.installed_at == self._call.installed.installed_at
            and memory.window_tokens == self._host_window()
        ):
            return
        if not is_same:
            record.model = model
            # Both were learned of the window of the model before.
            del memory.highest_tokens, memory.observed_tokens
        self.resolve_limit()

    def observe_window(self, tokens: int | None) -> None:
        """Note the most that a provider takes, where it has just refused more; None = it did not.

        It holds for the model that is asked now.
        """
        if tokens is not None and tokens != self.memory.observed_tokens:
            self.memory.observed_tokens = tokens
            self.resolve_limit()

    def take(self, report: Report | None, place: Place | None = None) -> bool:
        """Take what a transcript reports; return whether it was new enough.

        Args:
            report: The report; None = there is none.
            place: Where it stands, see `LastReading.place`.
        """
        if report is None:
            return False
        self.set_model(report.requested_model or report.model)
        self._follow_compactions(report.tokens)
        # One without a time may belong to a window that is gone.
        return report.at is not None and self.gauge.take(
            report.tokens, report.output_tokens, report.at, place
        )

    def _follow_compactions(self, tokens: int) -> None:
        """Note where the host is likely to compact this window, unless it disproves that."""
        memory, compactions = self.memory, self._call.compactions()
        del memory.likely_tokens, memory.likely_seen
        key = None if compactions is None else self._compactions_key()
        if compactions is None or key is None:
            return
        likely = compactions.near(key)
        if likely is None:
            return
        from ultramon.hosts.calls.learned_compactions import is_passed

        if not is_passed(tokens, likely[0]):
            memory.likely_tokens, memory.likely_seen = likely
            return
        try:
            # Passed once without a compaction it is wrong for every session of its key.
            compactions.drop(key)
        except StateError as error:
            self._call.fail(self.record.agent_id, f"a likely compaction stays: {error}")

    def _compactions_key(self) -> str | None:
        """Return what the host's compactions of this window depend on; None = not known."""
        record, memory = self.record, self.memory
        if memory.client_version is None and memory.transcript_path is not None:
            try:
                version = self._host.transcripts.client_version(memory.transcript_path)
            except (OSError, ValueError):
                return None
            memory.client_version = (version or "")[:_MAX_VERSION_CHARS]
        version, model, window = memory.client_version, record.model, record.context_window
        if not version or model is None or window is None:
            return None
        from ultramon.hosts.calls.learned_compactions import key_of

        return key_of(version, model, window, memory.trigger_tokens)

    def _learn_compaction(self) -> None:
        """Note an automatic compaction that has taken place."""
        full_at = self.memory.full_at
        del self.memory.full_at
        key = None if full_at is None else self._compactions_key()
        compactions = self._call.compactions(must_exist=False)
        if full_at is None or key is None or compactions is None:
            return
        try:
            compactions.learn(key, full_at)
        except StateError as error:
            self._call.fail(self.record.agent_id, f"a compaction is not noted: {error}")

    def take_last(self, reading: LastReading) -> None:
        """Take the last reply of a turn, and remember which it was: another one ends the next."""
        report = reading.report
        self.take(report, reading.place)
        if report is not None:
            self.memory.last_reply_at = report.at

    def name(self, detail: str) -> None:
        """Name the agent after its project and what it does, once."""
        if self.record.label is None and detail:
            folder = os.path.basename((self.record.cwd or "").rstrip("/"))
            label = f"{folder}: {one_line(detail)}" if folder else one_line(detail)
            self.record.label = label[:_MAX_LABEL_CHARS]

    def begin_turn(self, prompt: str) -> None:
        """A prompt was submitted; empty for one that the host wrote itself, which is no task."""
        self.memory.begin_turn(self._call.began_at)
        self.record.phase = WORKING
        if prompt:
            self.count_prompt()
            self.begin_task(prompt)

    def count_prompt(self) -> None:
        """Note that the conversation holds one more prompt, where compaction depends on it."""
        least, count = self._host.dialect.prompts_before_compaction, self.memory.prompts + 1
        if count <= least:
            self.memory.prompts = count
            if count == least:
                # What a single prompt has grown to is no sign that the host does not compact.
                del self.memory.highest_tokens
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
            del self.memory.last_prompt
        elif prompt:
            from ultramon.hosts.calls.facts import LastPrompt

            text = prompt[:_MAX_PROMPT_CHARS]
            self.memory.last_prompt = LastPrompt(text=text, chars=len(prompt))

    def check_start(self, call_id: str | None) -> None:
        """Make sure that a tool call can still be running: a host need not wait for this report.

        Raises:
            LateStartError: It has ended, or its turn has.
        """
        memory, began_at = self.memory, self._call.began_at
        # A time of the future was noted before the machine was started again.
        latest = boot_seconds()
        is_over = began_at <= memory.runs_nothing_since <= latest
        if self._call.is_retry and call_id not in memory.running:
            # The resident may have noted the start already, and another call its end.
            is_over |= began_at <= memory.call_ended_at <= latest
        if is_over or (call_id and call_id in memory.ended_early):
            raise LateStartError(call_id)

    def tool_started(self, call_id: str | None) -> None:
        """A tool begins to run."""
        self.memory.begin_call(call_id)
        self.record.phase = IN_TOOL

    def end_call(self, call_id: str | None) -> None:
        """A tool has run."""
        memory = self.memory
        memory.end_call(call_id, self._call.began_at)
        # Noted only for enforcement, which ends a turn at the last call of a reply.
        if call_id and self.must_return:
            memory.ended_calls = [*memory.ended_calls, call_id][-_MAX_ENDED_CALLS:]
        # Tools run in parallel: with one of them ended, others may still run.
        self.record.phase = IN_TOOL if memory.running else WORKING

    def wait(self, waits_for: str = "") -> None:
        """The host waits: for what `HookEvent.waits_for` names, else for the next prompt.

        Some hosts do not wait for the hook that says so: what has begun since counts.
        """
        memory, latest = self.memory, boot_seconds()
        is_over = any(
            self._call.began_at < at <= latest
            for at in (memory.runs_nothing_since, memory.call_ended_at)
        )
        if self.record.active and not is_over:
            self._run_nothing(WAITING)
            if waits_for:
                memory.waits_for = waits_for

    def _run_nothing(self, phase: str) -> None:
        self.memory.run_nothing(self._call.began_at)
        self.record.phase = phase

    def end(self, outcome: str, reason: str, error: str = "") -> None:
        """The agent has ended, for a reason that the host names or with an error."""
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
        self.take(reading.report, reading.place)
        if not self.record.active:
            return
        if reading.error is not None:
            self.end("failed", "request failed", reading.error)
        elif reading.stop_reason is not None:
            self.end("cancelled", "stopped by a hook")
            self.memory.stop_reason = one_line(reading.stop_reason)[:_MAX_LAST_CHARS]
        elif reading.stopped_at is not None:
            self.end("cancelled", "interrupted")
        else:
            self.end("cancelled", reason)
        # A launcher that got no result reads what the subagent wrote last.
        if text := one_line(reading.text):
            self.memory.last_text = text[:_MAX_LAST_CHARS]

    def _note_left_tasks(self) -> None:
        """Note what is open in the plan now: its session may take these tasks over."""
        left = [
            one_line(str(task.get("name")))[:_MAX_TASK_CHARS]
            for task in self.record.tasks or ()
            if task.get("status") != _DONE
        ]
        if left:
            from ultramon.hosts.calls.facts import LeftTasks

            self.memory.left_tasks = LeftTasks(count=len(left), names=left[:_MAX_LEFT_NAMES])

    def note_failure(self, error: str) -> None:
        """Remember what a turn failed with, forget it when one did not."""
        if error:
            self.memory.failed_with = error[:64]
        else:
            del self.memory.failed_with

    @property
    def has_open_turn(self) -> bool:
        """Whether a turn has begun and not ended: the agent works, or asks for something in it."""
        return self.record.phase != WAITING or bool(self.memory.waits_for)

    def finish(self, reason: str, *, cuts_turn: bool = False) -> None:
        """The session has ended, well unless its last turn failed or was cut."""
        failed = self.memory.failed_with
        del self.memory.failed_with
        if self.memory.turn_ended:
            self.end("cancelled", NOT_RETURNED)
        elif cuts_turn and not failed:
            self.end("cancelled", CUT_TURN)
        # Changes nothing where one of the two above has ended it.
        self.end("failed" if failed else "completed", reason, failed)

    def compacted(self, event: str) -> None:
        """Start an epoch at the first of the two events that follow one compaction.

        Args:
            event: Which of the two came; old hosts send only one of them.
        """
        if self.memory.is_first_report(event):
            self._learn_compaction()
            self._begin_window(None)

    def follow_compaction(self, reading: LastReading) -> None:
        """Start an epoch where a transcript shows a compaction that no event has reported."""
        if not self.lacks_compaction(reading):
            return
        self.memory.compaction_id = reading.compaction_id
        # Before the first reading there is no window that could have been compacted.
        if self.record.measured_at is not None:
            del self.memory.highest_tokens
            self._begin_window(reading.compacted_at)

    def lacks_compaction(self, reading: LastReading) -> bool:
        """Return whether a transcript shows a compaction that the state does not know yet."""
        return reading.compaction_id not in (None, self.memory.compaction_id)

    def _begin_window(self, at: float | None) -> None:
        self.memory.begin_window()
        self.gauge.begin_epoch("compaction", at=at)

    def compacting(self, *, is_automatic: bool) -> None:
        """A compaction may follow. It may also be interrupted, so nothing has changed yet."""
        del self.memory.compacted_by, self.memory.full_at
        # A person compacts at any fullness, so only automatic ones teach where the host compacts.
        if is_automatic and self.gauge.usage_ratio is not None:
            self.memory.full_at = known_tokens(self.record)

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

        The host may never get the answer: the hook is killed, or its resident.
        Until `has_warned`, the warning counts only while that process lives.

        Args:
            is_call: Whether a tool call ended; only those are counted.
            message_id: The reply that made these calls: one batch is warned once.
        """
        record, memory = self.record, self.memory
        level, base = record.threshold_status, self._call.installed.ladder.base
        if record.action != FORCE_RETURN:
            del memory.asked
        if level is None:
            return False  # what was warned of counts when the level is known again
        if level == base:
            del memory.warned
            return False
        from ultramon.hosts.calls.facts import Warned, of_epoch

        warned = of_epoch(memory.warned, record.epoch)
        if warned is None:
            warned = Warned(epoch=record.epoch, level=base, silent_calls=0, message_id=None)
            memory.warned = warned
        rank = self.gauge.rank
        if rank(level) <= rank(warned.level) and not self._call.is_unprinted(warned.printer):
            is_same_batch = message_id is not None and message_id == warned.message_id
            if is_call and not is_same_batch and rank(level) == rank(warned.level):
                warned.silent_calls += 1
            if rank(level) < rank(warned.level):
                warned.level, warned.silent_calls = level, 0
            if warned.silent_calls <= SILENT_CALLS:
                return False
        warned.level, warned.silent_calls, warned.message_id = level, 0, message_id
        warned.printer = self._call.printer()
        return True

    def has_warned(self) -> None:
        """The host has the answer with the warning."""
        from ultramon.hosts.calls.facts import Asked, of_epoch

        memory, epoch = self.memory, self.record.epoch
        if memory.warned is not None and memory.warned.printer == self._call.printer():
            del memory.warned.printer
            if of_epoch(memory.asked, epoch) is None and self.must_return:
                memory.asked = Asked(epoch=epoch, at=self._call.now)


def process_of(record: StateRecord) -> tuple[int | None, str | None, str, str]:
    """Return what names an agent's process among those of all machines and boots."""
    return record.pid, record.pid_started_at, record.boot_id, record.hostname


def one_line(text: str) -> str:
    """Return a text of several lines as one, without needless white space."""
    return " ".join(text[:1000].split())


def _id_or(value: str | None, otherwise: Any) -> Any:
    return value if is_agent_id(value) else otherwise
