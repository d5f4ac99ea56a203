"""`ContextMonitor`: what an agent's own code calls."""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import contextmanager, suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, Self, Unpack

# Loaded here, not when first needed: by then the process may have no descriptor left for it.
import ultramon.context.model_windows  # noqa: F401
from ultramon.backends.registry import registry_of
from ultramon.context.config import ContextConfig, as_config
from ultramon.context.levels import as_ladder
from ultramon.context.limits import parse_overflow
from ultramon.context.monitor_gauge import MonitorGauge
from ultramon.context.provider_usage import UNDERSTOOD, is_stream_part, usage_from_response
from ultramon.context.token_counts import input_side
from ultramon.errors import ConfigurationError, InvalidUsageError, UnknownResponseError
from ultramon.monitor.async_twins import in_thread, to_its_end
from ultramon.monitor.late_models import load_models
from ultramon.monitor.lifecycle import TASK_SAVE_SECONDS, Lifecycle
from ultramon.monitor.lifecycle_machine import CREATED
from ultramon.monitor.work_steps import WorkSteps
from ultramon.routing import NOTIFY_THRESHOLDS, PARENT, SELF
from ultramon.state.liveness import judge
from ultramon.state.plan import Plan
from ultramon.state.record import TOLD, StateRecord
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled, given_or_named
from ultramon.system.ids import generate_agent_id, random_hex
from ultramon.system.processes import this_machine
from ultramon.system.settings import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime
    from os import PathLike
    from typing import Never

    from ultramon.backends.base import Backend
    from ultramon.context.explanation import Explanation
    from ultramon.context.ladder import Ladder
    from ultramon.context.levels import ThresholdAction
    from ultramon.context.monitor_gauge import Fit
    from ultramon.handoff import HandoffRecord, HandoffTexts, Resume, Workspace
    from ultramon.state.models import AgentState
    from ultramon.system.clock import Clock

    Item = str | PathLike[str]

_log = logging.getLogger("ultramon.monitor")

STORING_THREADS = 4
"""Ends that are stored at once: with more of them the journal is busy for some (16: 2 of 300)."""
MAX_TOKENS = 1_000_000_000
"""No provider counts more; a larger number is an error of the caller."""


class ContextMonitor:
    """Knows how full one agent's context window is, and says so at the moment it matters.

    The agent begins with `start`, or with the monitor's ``with`` block, sync or async. Leaving the
    block ends it as ``completed``, after `hand_off` as ``returned``, on cancellation as
    ``cancelled``, on another exception as ``failed``. Every method is thread-safe. Apart from wrong
    arguments and a wrong order of calls nothing raises into the agent's turn: a state that cannot
    be saved is logged and tried again.

    Args:
        agent_id: 1-128 of ``A-Z a-z 0-9 . _ -``, starting with a letter or digit; None =
            ``ULTRAMON_AGENT_ID``, else a generated one; empty is refused. Two living agents never
            share an id.
        config: Limits, thresholds, intervals; None = from environment, file and defaults.
        run: The orchestration it belongs to; None = ``ULTRAMON_RUN``, else ``default``.
        parent_id: The agent that started it; None = ``ULTRAMON_PARENT_ID``.
        session_id: Of the conversation; None = generated.
        label: A name for people.
        goal: What the agent is for; goes into its handoff.
        continues: The handoff this agent takes over: it is claimed at the start, and what it left
            is the plan.
        takeover: Take the id even from an owner that provably lives.
        resumes: Continue the window of an ended agent of this id, with its last reading and plan,
            as that of a vanished one is: for a conversation that continues. What an agent has
            handed off is not continued.
        notify: ``self`` or ``parent``: the recipient of notices about this agent from its start on,
            see `register`; None = ``ULTRAMON_NOTIFY``, else no notices.
        notify_thresholds: When, as for `register`; None = the usage ratios, with commas between
            them, in ``ULTRAMON_NOTIFY_THRESHOLDS``, else the agent's own ladder.
        backend: A backend or its URL; None = see `open_backend`.
        clock: For tests; None = the system's.
        misspelt: Refused, with the keyword or the field of `ContextConfig` that is meant.

    Raises:
        InvalidAgentIdError: An id or run that cannot name a file.
        ConfigurationError: A configured value is out of range, or there is no recipient to notify.

    Attributes:
        agent_id: The agent.
    """

    def __init__(
        self,
        agent_id: str | None = None,
        config: ContextConfig | None = None,
        *,
        run: str | None = None,
        parent_id: str | None = None,
        session_id: str | None = None,
        label: str | None = None,
        goal: str | None = None,
        continues: HandoffRecord | None = None,
        takeover: bool = False,
        resumes: bool = False,
        notify: str | None = None,
        notify_thresholds: Ladder | Sequence[float] | None = None,
        backend: Backend | str | None = None,
        clock: Clock | None = None,
        **misspelt: Never,
    ) -> None:
        from ultramon.backends.opening import as_backend

        for name in misspelt:
            raise _unknown_keyword(name)
        agent_id = given_or_named(agent_id, "agent id", "ULTRAMON_AGENT_ID") or generate_agent_id()
        parent_id = given_or_named(parent_id, "parent_id", "ULTRAMON_PARENT_ID")
        record = StateRecord(
            agent_id,
            run=given_or_named(run, "run", "ULTRAMON_RUN") or "default",
            session_id=session_id or random_hex(16),
            parent_id=parent_id,
            predecessor_id=None if continues is None else continues.agent_id,
            continues_handoff_id=None if continues is None else continues.handoff_id,
            label=label,
        )
        source = "argument" if notify is not None else "ULTRAMON_NOTIFY"
        if notify is None:
            notify = os.environ.get("ULTRAMON_NOTIFY") or None
        if notify not in (None, SELF, PARENT):
            raise ConfigurationError("notify", notify, "None, self or parent", source)
        if notify == PARENT and parent_id is None:
            raise ConfigurationError("notify", notify, "given with a parent_id", source)
        rungs = _notify_ladder(notify_thresholds) if notify is not None else None
        store = None if disabled() else as_backend(backend)
        if notify is not None and store is not None:
            registry_of(store)
        config, clock = as_config(config), clock or SYSTEM_CLOCK
        plan = Plan()
        gauge = MonitorGauge(
            config, clock, lambda: (plan.completed_count, plan.total_count), record
        )
        lifecycle = Lifecycle(
            gauge,
            plan,
            backend=store,
            clock=clock,
            predecessor=continues,
            takeover=takeover,
            resumes=resumes,
            notify=notify,
            notify_ladder=rungs,
        )
        self.agent_id = lifecycle.agent_id
        self._lifecycle = lifecycle
        self._record = lifecycle.record
        self._writer = lifecycle.writer
        self._gauge = gauge
        self._plan = plan
        self._steps = WorkSteps(lifecycle, plan)
        self._goal = goal
        self._unknown_types: set[str] = set()
        self._overflow_epoch: int | None = None
        self._has_handed_off = False
        self._has_warned = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.agent_id} {self._lifecycle.phase}>"

    @property
    def config(self) -> ContextConfig:
        """The settings that it was made with."""
        return self._gauge.config

    @property
    def is_active(self) -> bool:
        """Whether the agent was started and has not ended."""
        return self._record.active

    @property
    def is_stored(self) -> bool:
        """Whether the store has everything that this agent has to store; False when disabled."""
        return self._writer.is_stored

    @property
    def is_fenced(self) -> bool:
        """Whether another process owns the agent: nothing of this one is stored any more.

        Its action is ``force_return`` then, and the message names the other.
        """
        return self._lifecycle.state.is_fenced

    @property
    def told_rank(self) -> int:
        """The highest rung of this epoch, from 0, of which the agent has read a reminder."""
        told = self._record.extra.get(TOLD) or {}
        return int(told["rank"]) if told.get("epoch") == self._record.epoch else 0

    @told_rank.setter
    def told_rank(self, rank: int) -> None:
        if rank != self.told_rank:
            with self._lifecycle.state.lock:
                # A new dictionary: a snapshot on its way to the store shares the former.
                told = {"epoch": self._record.epoch, "rank": rank}
                self._record.extra = {**self._record.extra, TOLD: told}

    def leave_if_taken(self) -> bool:
        """Return whether another owner has taken the agent; this monitor has ended then.

        Reads the store, once. For an agent that waited, before it works again.
        """
        return self._lifecycle.leave_if_taken()

    def start(self) -> Self:
        """Take the agent and store its first state; waits `store_timeout_seconds` at most.

        Where the store is too slow or refuses, the agent continues and is stored later; `is_stored`
        says whether it is. In an event loop use ``async with`` or `start_async`.

        Raises:
            LifecycleError: It was started before.
            AgentAlreadyRunningError: The id belongs to an agent whose owner provably lives.
            HandoffTakenError: Another successor took the handoff that this agent continues, or it
                was offered again because this one took too long to be stored.
            StateError: That handoff could not be claimed for certain, or the store refused and
                ``on_error`` is ``raise``.
        """
        self._lifecycle.start()
        return self

    async def start_async(self) -> Self:
        """Do what `start` does in a thread; one that is cancelled ends the agent as cancelled."""
        import asyncio

        try:
            return await to_its_end(self.start)
        except asyncio.CancelledError:
            if self._record.active:
                await self.stop_async("cancelled")
            raise

    def stop(self, outcome: str = "completed") -> bool:
        """End the agent, finally. A second call changes nothing.

        Args:
            outcome: ``completed``, ``returned``, ``failed``, ``cancelled``, ``expired`` or
                ``lost``.

        Returns:
            Whether the end is stored. It waits for that `store_timeout_seconds` at most; an end
            that is not stored is tried again for as long as the process lives.

        Raises:
            LifecycleError: It was never started.
            ValueError: There is no such outcome.
        """
        return self._lifecycle.stop(outcome)

    stop_async = in_thread(stop)

    def _exit_together(self, kind: type[BaseException] | None) -> None:
        if self._record.active:
            self._lifecycle.stop_here(self._outcome_of(kind, None))

    def __enter__(self) -> Self:
        return self.start() if self._lifecycle.phase == CREATED else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None = None,
        _traceback: object = None,
    ) -> None:
        if self._record.active:
            self.stop(self._outcome_of(kind, error))

    def _outcome_of(self, kind: type[BaseException] | None, error: BaseException | None) -> str:
        """Return how the agent ended, by what left its block."""
        if kind is None:
            return "returned" if self._has_handed_off else "completed"
        if _cancels(kind):
            return "cancelled"
        from ultramon.monitor.stored_error import stored_error

        self._record.exit = stored_error(kind, error)
        return "failed"

    async def __aenter__(self) -> Self:
        return await self.start_async() if self._lifecycle.phase == CREATED else self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None = None,
        traceback: object = None,
    ) -> None:
        await to_its_end(self.__exit__, kind, error, traceback)

    def track_content(self, text: str, *, source: str | None = None) -> ThresholdAction:
        """Count text that has entered the agent's context and say what to do now.

        Cheap (no I/O) unless the level changes.

        Args:
            text: Any text; empty is allowed and counts nothing.
            source: What brought it, e.g. ``tool:read``, for "what filled the window".

        Returns:
            The action for the level after this text; ``none`` while the level is unknown.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            TypeError: Not text.

        Emits:
            context_threshold_reached: Once per upward crossing, in this thread, after the state was
                saved or 50 ms have passed; ``event.stored`` says which.
        """
        lifecycle, gauge = self._lifecycle, self._gauge
        if not self._record.active:
            self._lifecycle.require("track_content")
        if not isinstance(text, str):
            raise TypeError(
                f"agent {self.agent_id}: content must be str, not {type(text).__name__}"
            )
        with lifecycle.state.lock:
            is_first = self._record.measured_at is None
            if not gauge.add(text, source):
                lifecycle.note_growth()
                return gauge.action
        return lifecycle.read(lambda: None, is_first=is_first)

    def report_usage(
        self,
        *,
        input_tokens: int | None,
        cache_read_tokens: int | None = 0,
        cache_creation_tokens: int | None = 0,
        output_tokens: int | None = 0,
        cache_in_input: bool = False,
        context_window_tokens: int | None = None,
        at: float | datetime | None = None,
    ) -> ThresholdAction:
        """Take what the provider counted for one response as the new anchor.

        Report a single response, never a running total. The reply joins the window with what
        follows it, so do not track it as content too.

        Args:
            input_tokens: Input of this response in tokens; None counts as 0, as everywhere here.
            cache_read_tokens: Input read from a cache.
            cache_creation_tokens: Input written to a cache.
            output_tokens: Tokens of the reply.
            cache_in_input: Whether ``input_tokens`` includes the cached ones (OpenAI, LangChain);
                more cached tokens than input are beside it all the same.
            context_window_tokens: What the provider says the model holds, if it does.
            at: When the provider counted, epoch seconds or aware datetime; a reading older than
                the last one or than this epoch changes nothing. None = now, and so is later.

        Returns:
            The action for the level after this report.

        Raises:
            InvalidUsageError: A number that no provider can have counted; nothing changes.
            ValueError: ``at`` is no finite time; nothing changes.
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("report_usage")
        tokens = self._count("input_tokens", input_tokens)
        read = self._count("cache_read_tokens", cache_read_tokens)
        created = self._count("cache_creation_tokens", cache_creation_tokens)
        output = self._count("output_tokens", output_tokens)
        window = self._count("context_window_tokens", context_window_tokens) or None
        tokens = input_side(tokens, read + created, cache_in_input=cache_in_input)
        stamp = self._stamp(at)
        return self._lifecycle.read(lambda: self._gauge.report(tokens, output, window, stamp))

    def report_response(
        self,
        response: object,
        *,
        strict: bool = False,
        estimate: Callable[[], int | Iterable[str]] | None = None,
    ) -> ThresholdAction:
        """Report the usage in what a model SDK or an agent framework returned.

        Of a run result or a conversation the last response counts, never the sum. A part of a
        stream without usage, and a usage of zeros, change nothing. An object without readable
        usage changes nothing either, and is logged as a warning, once for each type.

        Args:
            response: One of the shapes that `ultramon.context.provider_usage.UNDERSTOOD` lists.
            strict: Raise instead of logging.
            estimate: Called where a whole response states no usage, or zeros: gives the texts of
                the request and its reply, or another estimate of all that is in the window, in
                tokens. The reading is ``estimated`` then. None = nothing changes.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            UnknownResponseError: With `strict`, the object holds no readable usage.
            InvalidUsageError: With `strict`, its numbers are impossible.
        """
        self._lifecycle.require("report_response")
        usage = usage_from_response(response)
        is_counted = usage is not None and any(usage[:3])
        if estimate is not None and not is_counted and not is_stream_part(response):
            given = estimate()
            return self._lifecycle.read(lambda: self._gauge.recount(given))
        if usage is None:
            if not is_stream_part(response):
                self._refuse_response(response, strict=strict)
            return self._gauge.action
        try:
            return self.report_usage(
                input_tokens=usage.input_tokens,
                cache_read_tokens=usage.cache_read_tokens,
                cache_creation_tokens=usage.cache_creation_tokens,
                output_tokens=usage.output_tokens,
                cache_in_input=usage.cache_in_input,
            )
        except InvalidUsageError as error:
            if strict:
                raise
            _log.warning("%s; the response is ignored", error)
            return self._gauge.action

    def _refuse_response(self, response: object, *, strict: bool) -> None:
        kind = type(response)
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        error = UnknownResponseError(self.agent_id, name, UNDERSTOOD)
        if strict:
            raise error
        if name not in self._unknown_types:
            self._unknown_types.add(name)
            _log.warning("%s; the response is ignored", error)

    def report_overflow(self, error: BaseException | str) -> bool:
        """Learn from a provider's refusal of a prompt that is too long.

        Args:
            error: The exception, or its text.

        Returns:
            True when it is such a refusal: the window counts as full, and the size that the
            provider names is believed.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("report_overflow")
        parsed = parse_overflow(str(error))
        if parsed is None:
            return False
        self._overflow_epoch = self._record.epoch
        self._lifecycle.read(lambda: self._gauge.overflow(*parsed))
        return True

    def fits(self, text_or_tokens: str | int) -> Fit:
        """Say, before a large text goes in, whether it fits and which level it would lead to.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            InvalidUsageError: A negative or impossible number of tokens.
        """
        self._lifecycle.require("fits")
        if not isinstance(text_or_tokens, str):
            self._count("text_or_tokens", text_or_tokens)
        with self._lifecycle.state.lock:
            return self._gauge.fits(text_or_tokens)

    def set_model(self, model: str | None) -> ThresholdAction:
        """Change the model: its window and tokenizer hold from now on.

        Raises:
            LifecycleError: The monitor is already stopped.
            ConfigurationError: The reserved output leaves nothing of the new window.
        """
        self._lifecycle.require("set_model")
        return self._lifecycle.read(lambda: self._gauge.set_model(model))

    def set_host_limits(
        self, *, window_tokens: int | None = None, trigger_tokens: int | None = None
    ) -> ThresholdAction:
        """Take what the agent's framework says of its window: ``host`` as source of the limit.

        Args:
            window_tokens: Tokens that the model can hold; None = it does not say.
            trigger_tokens: Where the framework compacts by itself; None = nowhere.

        Raises:
            LifecycleError: The monitor is already stopped.
            InvalidUsageError: An impossible number of tokens.
            ConfigurationError: The reserved output leaves nothing of the window.
        """
        self._lifecycle.require("set_host_limits")
        window = self._count("window_tokens", window_tokens) or None
        trigger = self._count("trigger_tokens", trigger_tokens) or None
        return self._lifecycle.read(lambda: self._gauge.set_host_limits(window, trigger))

    def record_compaction(self, tokens_after: int | None = None) -> ThresholdAction:
        """Note that the context was compacted: a new epoch begins.

        Args:
            tokens_after: Tokens left in the window; None = not known until the next report.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            InvalidUsageError: An impossible number of tokens.
        """
        self._lifecycle.require("record_compaction")
        if tokens_after is not None:
            self._count("tokens_after", tokens_after)
        return self._lifecycle.read(lambda: self._gauge.begin_epoch("compaction", tokens_after))

    def clear(self) -> ThresholdAction:
        """Note that the context was emptied: a new epoch begins with nothing in the window.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("clear")
        return self._lifecycle.read(lambda: self._gauge.begin_epoch("clear", 0))

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
        with self._lifecycle.state.lock:
            self._plan.add(items)
        if self._record.active:
            # At once: a plan that no record ever held cannot be handed over.
            self._writer.commit()

    def pending(self) -> list[str]:
        """Return the names of the items that are not done, interrupted ones included, in order."""
        with self._lifecycle.state.lock:
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
        plan = self._plan
        with self._lifecycle.state.lock:
            name = plan.begin(item)
        self._writer.changed(TASK_SAVE_SECONDS)
        try:
            yield
        except BaseException:
            self._change_plan(lambda: plan.interrupt(name))
            raise
        self._change_plan(lambda: plan.finish(name))

    def set_current_task(self, item: Item | None) -> None:
        """Name the present task; None = nothing in particular.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("set_current_task")
        self._change_plan(lambda: self._plan.set_current(item))

    def set_tasks_total(self, total: int | None) -> None:
        """Fix the number of tasks; None = as many as the plan has.

        Raises:
            LifecycleError: The monitor is already stopped.
            ConfigurationError: Not a whole number from 0 to a billion, or fewer than are done.
        """
        self._lifecycle.require("set_tasks_total")
        self._change_plan(lambda: self._plan.set_total(total))

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
        self._change_plan(lambda: self._plan.complete(item, result))

    def step(self, name: str, result: Any = None, *, item: Item | None = None) -> Any:
        """Store that a step inside an item is done, with a small result, for a successor.

        It is in the journal when this returns: a store that is slow or refuses is waited for up to
        `store_timeout_seconds`. One that could not be stored is logged, and done again after a
        kill: a step is done at least once. In an event loop use `step_async`.

        Args:
            name: Of the step, 1 to 200 characters; one that was stored before is replaced.
            result: A value of JSON, for small facts and references; None = nothing but its name.
                All steps of an item take at most 64 KiB, names and results as ASCII JSON.
            item: Which item; None = the one in work.

        Returns:
            The result as a successor reads it: a copy, with lists in place of tuples.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            AgentWorkError: No item is in work, and none was named.
            ConfigurationError: A name or result that is not allowed; nothing was stored.
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        self._lifecycle.require("step")
        return self._steps.store(name, result, item)

    step_async = in_thread(step)

    def steps(self, item: Item | None = None) -> dict[str, Any]:
        """Return what was done inside an item: the results of its steps by name, as stored.

        By this agent, and by those before it where `Fleet.supervise` has assigned the item; of a
        former life of this agent where that was killed. An item's steps end with its claim: where
        the check of it fails, it begins anew.

        The first call reads the agent's events, and waits for a store that refuses as `step` does.

        Args:
            item: Which item; None = the one in work.

        Raises:
            AgentWorkError: No item is in work, and none was named.
            StateError: The store refused and ``on_error`` is ``raise``.
        """
        self._lifecycle.require("steps")
        return self._steps.of(item)

    def _change_plan(self, change: Callable[[], str | None]) -> None:
        """Apply a change to the plan, warn of the oddity that it returns, and save it soon."""
        with self._lifecycle.state.lock:
            oddity = change()
            if oddity is not None and not self._has_warned:
                self._has_warned = True
                _log.warning("agent %s: %s", self.agent_id, oddity)
        if self._record.active:
            self._writer.changed(TASK_SAVE_SECONDS)

    def hand_off(
        self,
        reason: str | None = None,
        *,
        workspace: Workspace | None = None,
        resume: Resume | None = None,
        **texts: Unpack[HandoffTexts],
    ) -> HandoffRecord:
        """Leave a record for a successor and store it durably.

        Waits `store_timeout_seconds` at most; ``stored`` of the record says whether it is stored.
        If not, that is tried again for as long as the process lives. In an event loop use
        `hand_off_async`.

        What is done, may be half done and remains is taken from the plan. Leaving the monitor's
        block afterwards ends the agent as ``returned``. A later call replaces the record; only one
        successor can claim what an agent leaves in one epoch.

        Args:
            reason: One of `ultramon.handoff.REASONS`; None = ``context_overflow`` after one
                in this epoch, else by the level, ``task_complete`` below all rungs.
            workspace: Where the work lies; None = look at the working directory (git, if there).
            resume: How to continue the very same session.
            **texts: What else a successor should know: ``notes``, ``next_step``, ``decisions`` and
                more; see `ultramon.handoff.HandoffTexts`.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
            ConfigurationError: There is no such reason.
        """
        self._lifecycle.require("hand_off")
        load_models()
        from ultramon.handoff import REASONS, look_at_workspace

        if reason is not None and reason not in REASONS:
            raise ConfigurationError("reason", reason, f"one of {', '.join(REASONS)}")
        workspace = workspace or look_at_workspace()
        lifecycle = self._lifecycle
        with lifecycle.state.lock:
            record = self._describe_work(
                reason or self._handoff_reason(), texts, workspace=workspace, resume=resume
            )
            handoff = self._record.handoff = record.to_json()
            self._has_handed_off = True
            event = self._writer.event("handoff_ready", handoff=handoff)
        stored = lifecycle.announce([event], patiently=True)
        return record.model_copy(update={"stored": stored}).bind(lifecycle.backend)

    hand_off_async = in_thread(hand_off)

    def checkpoint(self, **texts: Unpack[HandoffTexts]) -> HandoffRecord:
        """Store what a successor would need while the agent continues, as before a compaction.

        The record is in the journal, as the event ``checkpoint_stored``, and nowhere else: the
        agent is not ended, no agent takes its work over, and what it leaves later is a record of
        its own. Waits 50 ms for the store at most.

        Args:
            **texts: As for `hand_off`.

        Returns:
            The record, with the reason ``compaction``. It is offered to no successor.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("checkpoint")
        load_models()
        lifecycle = self._lifecycle
        with lifecycle.state.lock:
            record = self._describe_work("compaction", texts, suffix="-checkpoint")
            event = self._writer.event("checkpoint_stored", handoff=record.to_json())
        return record.model_copy(update={"stored": lifecycle.announce([event])})

    def _describe_work(
        self, reason: str, texts: HandoffTexts, *, suffix: str = "", **place: Any
    ) -> HandoffRecord:
        """Make a record of the plan as it is, and of what the agent says; under the lock."""
        from ultramon.handoff import HandoffRecord, bounded, bounded_text

        own, before = self._lifecycle.state.snapshot(), self._lifecycle.predecessor
        return HandoffRecord.of(
            own,
            own.tasks or [],
            now=self._lifecycle.clock.now(),
            reason=reason,
            suffix=suffix,
            generation_count=before.generation_count + 1 if before else 1,
            goal=bounded_text(self._goal or (before.goal if before else None)),
            **{"notes": None, **bounded(texts)},
            **place,
        )

    def _handoff_reason(self) -> str:
        if self._overflow_epoch == self._record.epoch:
            return "context_overflow"
        if self._gauge.returns_on_request or self.is_fenced:
            return "cancelled"
        from ultramon.state.stored_handoff import handoff_reason

        return handoff_reason(self._gauge.action.action)

    def waiting(self) -> None:
        """Say that the agent waits for a person or its next call: it is not stale meanwhile.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._enter_phase("waiting")

    def working(self) -> None:
        """Say that the agent works again.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._enter_phase("working")

    def _enter_phase(self, phase: str) -> None:
        self._lifecycle.require(phase)
        is_new, self._record.phase = phase != self._record.phase, phase
        # The same phase again is progress, and is saved with other progress: some programs report
        # it at each call.
        self._writer.changed(TASK_SAVE_SECONDS if is_new else None)

    def update_heartbeat(self, *, patiently: bool = False) -> bool:
        """Save the state now. Heartbeats come by themselves; this is for a sign in between.

        Args:
            patiently: Wait up to `store_timeout_seconds` for a store that is slow or refuses.

        Returns:
            Whether it is stored; False where that took longer than 50 ms, or was refused.

        Raises:
            LifecycleError: The monitor is not started, or already stopped.
        """
        self._lifecycle.require("update_heartbeat")
        return self._writer.commit(patiently=patiently)

    def get_threshold_action(self) -> ThresholdAction:
        """Return the action of the present level. A pure read."""
        return self._gauge.action

    def get_state(self) -> AgentState:
        """Return the state as it is now, whether saved yet or not. A pure read."""
        load_models()
        from ultramon.state.models import AgentState

        return AgentState.from_record(self._lifecycle.state.snapshot())

    def pinned_rules(self) -> str:
        """Return the rules that a person has pinned, as a conversation is given them back.

        They are those of the working directory, of folders around it, and of this agent: see
        `ultramon host pin`. Reads a file at each call. Empty without any, or where the store is no
        state directory; at most 8,000 bytes.
        """
        self._lifecycle.require("pinned_rules")
        from ultramon.backends.local.backend import LocalBackend
        from ultramon.errors import StateError
        from ultramon.state.pins import MAX_RULES_BYTES, UNREADABLE, Pins, write_rules
        from ultramon.system.processes import working_directory

        backend = self._lifecycle.backend
        if not isinstance(backend, LocalBackend):
            return ""
        try:
            pins = Pins(backend.directory.path).of(
                self._record.cwd or working_directory(), (self.agent_id,)
            )
        except (OSError, StateError) as error:
            _log.warning("agent %s: pins: %s", self.agent_id, error)
            return UNREADABLE
        return write_rules(
            pins,
            MAX_RULES_BYTES,
            lambda problem: _log.warning("agent %s: %s", self.agent_id, problem),
        )

    def explain(self) -> Explanation:
        """Return where the number comes from: anchor, delta, limit candidates, next level."""
        load_models()
        from ultramon.context.explanation import explain

        record = self._lifecycle.state.snapshot()
        now = self._lifecycle.clock.now()
        return explain(record, judge(record, now, now, this_machine()), now)

    def _count(self, name: str, value: int | None) -> int:
        if value is None:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TOKENS:
            raise InvalidUsageError(self.agent_id, name, value)
        return value

    def _stamp(self, at: float | datetime | None) -> float | None:
        if at is None:
            return None
        from datetime import datetime

        seconds = at.timestamp() if isinstance(at, datetime) else at
        if not isfinite(seconds):
            raise ValueError(f"agent {self.agent_id}: at={at!r} is not a time")
        return seconds


create_context_monitor = ContextMonitor
"""`ContextMonitor` under the name of a factory."""


def exit_together(ends: Iterable[tuple[ContextMonitor, type[BaseException] | None]]) -> None:
    """Leave the blocks of many monitors at once, as each alone would, stored by a few threads.

    Blocks until each end is stored or was refused; those are tried again for as long as the
    process lives.

    Args:
        ends: Monitors, each with the type of what it is left with; None = nothing.
    """
    left = list(ends)
    if len(left) == 1:
        monitor, kind = left.pop()
        monitor.__exit__(kind)

    def exit_all() -> None:
        # Each takes what is left: an executor of the library takes nothing when a process ends.
        while True:
            try:
                monitor, kind = left.pop(0)
            except IndexError:
                return
            monitor._exit_together(kind)

    threads = []
    with suppress(RuntimeError):  # a process that ends may have no more threads
        for _number in range(min(STORING_THREADS, len(left)) - 1):
            thread = threading.Thread(target=exit_all, name="ultramon-end")
            thread.start()
            threads.append(thread)
    exit_all()
    for thread in threads:
        thread.join()


def _cancels(kind: type[BaseException]) -> bool:
    """Return whether an exception of this type means that the agent is cancelled."""
    # A program without asyncio has no such error, and does not pay for the import.
    asyncio = sys.modules.get("asyncio")
    cancelled = () if asyncio is None else (asyncio.CancelledError,)
    return issubclass(kind, (KeyboardInterrupt, GeneratorExit, *cancelled))


def _unknown_keyword(name: str) -> ConfigurationError:
    own = ContextMonitor.__init__.__kwdefaults__ or {}
    fields = {field: f"ContextConfig({field}=...)" for field in ContextConfig.settings}
    hint = did_you_mean(name, (*own, *fields), fields)
    return ConfigurationError("keyword", name, f"one of {', '.join(own)}{hint}")


def _notify_ladder(given: Ladder | Sequence[float] | None) -> Ladder | None:
    text = os.environ.get(NOTIFY_THRESHOLDS)
    if given is not None or not text:
        return None if given is None else as_ladder(given)
    try:
        return as_ladder([float(ratio) for ratio in text.split(",")])
    except ValueError:
        allowed = "usage ratios that rise, with commas between them"
        raise ConfigurationError("notify_thresholds", text, allowed, NOTIFY_THRESHOLDS) from None
