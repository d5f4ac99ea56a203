"""The work of one agent: its plan, its tasks, and the handoff when it cannot go on."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ultramon import signals
from ultramon.errors import ConfigurationError
from ultramon.monitor.handoff import (
    REASONS,
    HandoffRecord,
    Resume,
    Workspace,
    bounded_list,
    bounded_text,
    handoff_id_of,
    look_at_workspace,
)
from ultramon.monitor.session import AgentLife, in_thread
from ultramon.state.models import utc
from ultramon.state.plan import DONE, IN_PROGRESS, INTERRUPTED, PENDING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from os import PathLike

    Item = str | PathLike[str]

_log = logging.getLogger("ultramon.monitor")

TASK_SAVE_SECONDS = 0.1
"""Task changes within this time are saved together."""


class AgentWork(AgentLife):
    """Plan, tasks and handoff; base of `ContextMonitor`."""

    _overflow_epoch: int | None = None
    _has_warned = False

    def plan(self, items: Iterable[Item]) -> None:
        """Add items to the plan, in order; items that are in it already stay as they are.

        An item is known by its name, so two of one name cannot both be done or handed over: number
        them. A successor made with ``continues=`` starts with what its predecessor left.

        Raises:
            LifecycleError: The monitor is already stopped.
            ConfigurationError: An item is no text or path, two have one name, or the plan would
                not fit a state.
        """
        self._lifecycle.require("plan")
        with self._writer.lock:
            self._plan.add(items)
        if self._active:
            # At once: a plan that no record ever held cannot be handed over.
            self._writer.commit()

    def pending(self) -> list[str]:
        """Return the names of the items that are not done, interrupted ones included, in order."""
        with self._writer.lock:
            return self._plan.pending()

    @contextmanager
    def task(self, item: Item) -> Iterator[None]:
        """Work on one item: done when the block ends, interrupted when it raises.

        Args:
            item: An item of the plan; a new one is added to it.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("task")
        with self._writer.lock:
            name = self._plan.begin(item)
        self._task_changed()
        try:
            yield
        except BaseException:
            with self._writer.lock:
                self._plan.interrupt(name)
            self._task_changed()
            raise
        with self._writer.lock:
            self._warn(self._plan.finish(name))
        self._task_changed()

    def set_current_task(self, item: Item | None) -> None:
        """Say what the agent is doing; None = nothing in particular.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("set_current_task")
        with self._writer.lock:
            self._plan.set_current(item)
        self._task_changed()

    def set_tasks_total(self, total: int | None) -> None:
        """Fix the number of tasks; None = as many as the plan has.

        Raises:
            LifecycleError: The monitor is already stopped.
            ConfigurationError: Not a whole number from 0 on, or fewer than are done.
        """
        self._lifecycle.require("set_tasks_total")
        with self._writer.lock:
            self._plan.set_total(total)
        self._task_changed()

    def complete_task(self, item: Item | None = None, *, result: str | None = None) -> None:
        """Count a task as done.

        A name counts once, however often it is completed; that, and more tasks than
        `set_tasks_total` said, is logged as a warning, once for each agent.

        Args:
            item: Which; None = the current one, or one without a name.
            result: A reference to what came out of it, e.g. a path.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("complete_task")
        with self._writer.lock:
            self._warn(self._plan.complete(item, result))
        self._task_changed()

    def _warn(self, oddity: str | None) -> None:
        if oddity is not None and not self._has_warned:
            self._has_warned = True
            _log.warning("agent %s: %s", self.agent_id, oddity)

    def _task_changed(self) -> None:
        if self._active:
            self._writer.changed(TASK_SAVE_SECONDS)

    def hand_off(
        self,
        reason: str | None = None,
        *,
        notes: str | None = None,
        next_step: str | None = None,
        constraints: Sequence[str] = (),
        decisions: Sequence[str] = (),
        rejected: Sequence[str] = (),
        open_questions: Sequence[str] = (),
        files_modified: Sequence[str] = (),
        workspace: Workspace | None = None,
        resume: Resume | None = None,
    ) -> HandoffRecord:
        """Leave a record for a successor and store it durably.

        Waits `store_timeout_seconds` at most; ``stored`` of the record says whether it is stored.
        If not, that is tried again for as long as the process lives. In an event loop use
        `hand_off_async`.

        What is done, may be half done and remains is taken from the plan. Leaving the monitor's
        block afterwards ends the agent as ``returned``. A later call replaces the record; only one
        successor can claim what an agent leaves in one epoch.

        Args:
            reason: One of `ultramon.monitor.handoff.REASONS`; None = ``context_overflow`` after
            one in this
                epoch, else by the level, ``task_complete`` below all rungs.
            notes: What was learned, free text; cut after 32,768 characters.
            next_step: What a successor should do first.
            constraints: What must not be done; here and below at most 200 texts.
            decisions: What was decided.
            rejected: What was tried and given up.
            open_questions: What is not known.
            files_modified: Paths.
            workspace: Where the work lies; None = look at the working directory (git, if there).
            resume: How to continue the very same session.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            ConfigurationError: There is no such reason.
        """
        self._lifecycle.require("hand_off")
        if reason is not None and reason not in REASONS:
            raise ConfigurationError("reason", reason, f"one of {', '.join(REASONS)}")
        workspace = workspace or look_at_workspace()
        before = self._predecessor
        with self._writer.lock:
            plan, gauge = self._plan, self._gauge
            record = HandoffRecord(
                handoff_id=handoff_id_of(
                    self.agent_id, self._writer.generation, gauge.epoch, self._writer.started_at
                ),
                agent_id=self.agent_id,
                run=self._run,
                predecessor_id=before.agent_id if before else None,
                generation_count=before.generation_count + 1 if before else 1,
                epoch=gauge.epoch,
                reason=reason or self._handoff_reason(),
                goal=bounded_text(self._goal or (before.goal if before else None)),
                constraints=bounded_list(constraints),
                completed=plan.with_status(DONE),
                interrupted=plan.with_status(IN_PROGRESS, INTERRUPTED),
                remaining=plan.with_status(PENDING),
                results=plan.results,
                decisions=bounded_list(decisions),
                rejected=bounded_list(rejected),
                open_questions=bounded_list(open_questions),
                next_step=bounded_text(next_step),
                files_modified=bounded_list(files_modified),
                workspace=workspace,
                resume=resume,
                notes=bounded_text(notes),
                tokens=gauge.tokens,
                created_at=utc(self._clock.now()),
            )
            self._handoff = record.to_json()
            self._handed_off = True
            event = self._writer.event("handoff_ready", gauge.epoch, handoff=self._handoff)
        stored = self._writer.commit_patiently()
        self._emit([(signals.handoff_ready, event)], stored=stored)
        record = record.model_copy(update={"stored": stored})
        return record.bind(self._backend) if self._backend is not None else record

    hand_off_async = in_thread(hand_off)

    def _handoff_reason(self) -> str:
        if self._overflow_epoch == self._gauge.epoch:
            return "context_overflow"
        if self._gauge.returns_on_request or self.is_fenced:
            return "cancelled"
        action = self._gauge.action
        if action.should_return:
            return "threshold_critical"
        if action.should_prepare:
            return "threshold_warning"
        return "task_complete"
