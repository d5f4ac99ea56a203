"""What the adapters of all frameworks share: whose window it is, what it reads, when it is ended.

Knows no framework. Nothing here but a user's own `on_return` raises into an agent's turn.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from contextlib import contextmanager
from contextvars import ContextVar, Token
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypedDict

from ultramon.backends.opening import as_backend
from ultramon.backends.toolkit import find_record
from ultramon.context.limits import window_for_model
from ultramon.errors import (
    AgentAlreadyRunningError,
    ConfigurationError,
    UltramonError,
)
from ultramon.handoff import HandoffRecord
from ultramon.monitor.monitor import ContextMonitor, create_context_monitor, exit_together
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.environment import disabled
from ultramon.system.ids import generate_agent_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from ultramon.backends.base import Backend
    from ultramon.context.config import ContextConfig
    from ultramon.context.levels import ThresholdAction
    from ultramon.system.clock import Clock

_log = logging.getLogger("ultramon.integrations")

IDLE_SECONDS = 600.0
"""A conversation that was not continued for so long is ended; its next turn starts it again."""
SILENT_SECONDS = 3600.0
"""A run without a call for so long has failed somewhere that no adapter sees."""
STOP = "stop"


class Choices(TypedDict, total=False):
    """What every adapter takes, all as keywords, all optional.

    Attributes:
        config: Limits and thresholds of every agent; the model is taken from the framework where
            the configuration names none.
        run: As for `create_context_monitor`, and so are parent_id, label, goal, backend and clock.
        parent_id: Of agents that no other watched agent called.
        label: A name for people; default: the framework's name of the agent.
        goal: What the agents are for; goes into their handoffs.
        backend: A backend or its URL.
        clock: For tests.
        tell: Whether the facts about its window are added to an agent's next model call when a
            level is reached. They go into that request only, never into the history. Default: no.
        on_return: What happens when an agent should return: None (default) = nothing, ``stop`` =
            it hands off and its run ends, or a function that is given the monitor, leaves the
            handoff and returns it (None = `hand_off` is called for it), before the run ends.
        pins: Whether rules that a person has pinned for the working directory, or for the agent
            (`ultramon host pin`), are added after a compaction: to each request from then on, or
            once where the framework keeps what is added. Default: no.
    """

    config: ContextConfig | None
    run: str | None
    parent_id: str | None
    label: str | None
    goal: str | None
    backend: Backend | str | None
    clock: Clock | None
    tell: bool
    on_return: str | Callable[[ContextMonitor], HandoffRecord | None] | None
    pins: bool


class LostCallError(UltramonError):
    """A call of the model began and never came back; stored as the error of its agent."""


class WatchedAgent:
    """One context window of an agent of a framework.

    Made by `Adapter.begin`. Where ultramon is disabled, or the agent could not be started, it has
    no monitor and every method does nothing.

    Attributes:
        monitor: Its monitor; None = not watched.
        handoff: What it left when its run was ended; None until then.
        can_tell: Whether something can be added to its requests.
        can_wait: Whether a person may be asked in the middle of its run.
        request: What an adapter keeps of the request that is under way.
        open_calls: Tools that its last reply calls, and that have not begun.
    """

    def __init__(self, adapter: Adapter, monitor: ContextMonitor | None, *, is_child: bool) -> None:
        self.monitor = monitor
        self.handoff: HandoffRecord | None = None
        self.is_child = is_child
        self.used_at = adapter.clock.monotonic()
        self.is_resting = False
        self.is_paused = False
        self.can_tell = True
        self.can_wait = False
        self.error: type[BaseException] | None = None
        self.summary_id: str | None = None
        self.calls = 0
        self.running_tools = 0
        self.open_calls = 0
        self.request: object = None
        self.is_calling = False
        self._adapter = adapter
        self._telling: int | None = None
        self._is_compacted = False
        self._last_words = ""
        self._first: object = None
        self._seen = 0
        self._model: str | None = None
        self._window_tokens: int | None = None

    @property
    def active(self) -> ContextMonitor | None:
        """The monitor while the agent is active, else None."""
        return self.monitor if self.monitor is not None and self.monitor.is_active else None

    def before_call(self, model: str | None = None, window_tokens: int | None = None) -> str | None:
        """Note that the model is called; return what to add to this request, None = nothing.

        Args:
            model: Its name, where the framework says it.
            window_tokens: What the framework says it holds; for models that ultramon does not know.
        """
        monitor = self.active
        if monitor is None:
            return None
        self.resume()
        self.calls += 1
        self.is_calling = True
        self.used_at = self._adapter.clock.monotonic()
        self.uses_model(model, window_tokens)
        if self.calls == 1:
            self._adapter.check_trigger(monitor)
        if self._adapter.only_reads:
            return None
        action = monitor.get_threshold_action()
        tells = self._adapter.tells and self.can_tell
        note = self._note(monitor, action) if tells else None
        return "\n".join(filter(None, (self._rules(monitor), note))) or None

    def _note(self, monitor: ContextMonitor, action: ThresholdAction) -> str | None:
        """Return the facts where a rung is reached that was not reported to the agent.

        It was reported once the request with the facts was answered; one that failed is not in its
        history. The rank is the monitor's: another object that watches it does not repeat it.
        """
        rank = self._rank(action)
        is_new = rank > monitor.told_rank
        # A rung counts as reported once its call is answered: a request that failed was not read.
        self._telling = rank if is_new and not self._adapter.keeps_texts else None
        if self._telling is None:
            monitor.told_rank = rank
        return action.note if is_new else None

    def _rules(self, monitor: ContextMonitor) -> str:
        """Return the pinned rules for this request; empty before a compaction."""
        if not (self._adapter.gives_pins and self._is_compacted):
            return ""
        # Where the framework keeps what was added, once is enough; elsewhere each request needs it.
        self._is_compacted = not self._adapter.keeps_texts
        return monitor.pinned_rules()

    def uses_model(self, model: str | None, window_tokens: int | None = None) -> None:
        """Take the name of the model; its parameters are those of `before_call`."""
        if model is None:
            return
        monitor = self.active
        if monitor is None or monitor.config.model is not None:
            return
        if model != self._model:
            self._model, self._window_tokens = model, None
            monitor.set_model(model)
        if window_tokens != self._window_tokens and window_for_model(model) is None:
            self._window_tokens = window_tokens
            monitor.set_host_limits(
                window_tokens=window_tokens, trigger_tokens=self._adapter.trigger_tokens
            )

    def _rank(self, action: ThresholdAction) -> int:
        assert self.monitor is not None
        names = self.monitor.config.effective_ladder.names
        rank = names.index(action.level) if action.level in names else 0
        # A return that an orchestrator asks for is above every level.
        return len(names) if action.should_return and rank < len(names) - 1 else rank

    def after_call(
        self, response: object, estimate: Callable[[], int | Iterable[str]] | None = None
    ) -> None:
        """Read the usage of a response, or of what holds it.

        Args:
            response: The response.
            estimate: As for `ContextMonitor.report_response`: for a model that reports no usage.
        """
        self.error, self.is_calling = None, False
        self.used_at = self._adapter.clock.monotonic()
        monitor = self.active
        if monitor is None:
            return
        if self._telling is not None:
            monitor.told_rank, self._telling = self._telling, None
        monitor.report_response(response, estimate=estimate)

    def failed(self, error: BaseException) -> None:
        """Note that a call of a model or tool raised; learns the limit where it was too long."""
        self.error, self._telling = type(error), None
        monitor = self.active
        if monitor is not None:
            monitor.report_overflow(str(error))

    def tool_returned(self, text: object, name: str) -> None:
        """Count what a tool brought, until the next response says what is in the window."""
        monitor = self.active
        if monitor is not None and isinstance(text, str):
            monitor.track_content(text, source=f"tool:{name}")

    def compacted(self, tokens_after: int | None = None) -> None:
        """Store what the agent has done, and begin a new epoch: earlier messages are replaced."""
        self._is_compacted = True
        monitor = self.active
        if monitor is not None:
            # Now, for no framework has a hook before it; plan and tasks are not in the window.
            monitor.checkpoint()
            monitor.record_compaction(tokens_after)

    def unseen(self, items: Sequence[Any]) -> Sequence[Any]:
        """Return what has come since the last call of this; all where the first one is another.

        For looking through a history without walking all of it at every call: what replaces
        messages replaces the first ones.
        """
        first = items[0] if items else None
        start = self._seen if first is self._first and self._seen <= len(items) else 0
        self._first, self._seen = first, len(items)
        return items[start:] if start else items

    def summarised(self, summary_id: str | None) -> None:
        """Begin a new epoch where a summary is in the request that was not there before."""
        if summary_id is None or summary_id == self.summary_id:
            return
        self.summary_id = summary_id
        # One that an earlier turn left is no news to an agent that has just begun.
        if self.calls:
            self.compacted()

    @property
    def should_end(self) -> bool:
        """Whether the run is to be ended now, because its user wants it so."""
        monitor = self.active
        if monitor is None or self._adapter.on_return is None:
            return False
        return monitor.get_threshold_action().should_return

    def hand_off(self) -> HandoffRecord:
        """Leave the handoff; blocks until it is stored, `store_timeout_seconds` at most."""
        monitor, choice = self.monitor, self._adapter.on_return
        assert monitor is not None
        record = choice(monitor) if callable(choice) else None
        self.handoff = record if isinstance(record, HandoffRecord) else monitor.hand_off()
        return self.handoff

    def last_reply(self) -> str:
        """Hand off, and return what a run that ends cleanly says last; blocks as `hand_off`."""
        if self.handoff is None:
            assert self.monitor is not None
            message = self.monitor.get_threshold_action().message
            record = self.hand_off()
            self._last_words = (
                f"{message}. Handoff {record.handoff_id} of agent {record.agent_id} is left."
            )
        return self._last_words

    def pause(self) -> None:
        """Note that a person may be asked now; `resume` follows where none is."""
        monitor = self.active
        if monitor is not None:
            self.is_paused = True
            monitor.waiting()

    def resume(self) -> None:
        """Note that the run continues after a `pause`."""
        monitor = self.active
        if self.is_paused and monitor is not None:
            monitor.working()
        self.is_paused = False

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Make agents that begin in this block children of this one."""
        token = self.make_current()
        self.running_tools += 1
        try:
            yield
        finally:
            self.running_tools -= 1
            _current.reset(token)

    def make_current(self) -> Token[WatchedAgent | None]:
        """Make it the agent of this context, while `running_tools` is not 0."""
        return _current.set(self)


_current: ContextVar[WatchedAgent | None] = ContextVar("ultramon_agent", default=None)


def current_agent() -> WatchedAgent | None:
    """Return the agent whose tool is running in this context."""
    agent = _current.get()
    # The variable alone may be stale: hooks in tasks of their own cannot reset it.
    return agent if agent is not None and agent.active and agent.running_tools else None


class Adapter:
    """The agents of one framework that one user's object watches. Thread-safe.

    Args:
        framework: Its name, for messages.
        monitor: The monitor of the outermost agent; its user starts and ends it. None = each run
            gets one of its own, which ends with the run.
        trigger_tokens: Where the framework compacts by itself; None = nowhere.
        keeps_texts: Whether what is added to a request stays in the conversation.
        choices: As `Choices` says.

    Attributes:
        nobody: Stands for an agent that is not watched.
        only_reads: Whether it adds nothing to requests and ends no run.

    Raises:
        ConfigurationError: A choice is not allowed, or says how to make the monitor that is given.
    """

    def __init__(
        self,
        framework: str,
        monitor: ContextMonitor | None = None,
        *,
        trigger_tokens: int | None = None,
        keeps_texts: bool = False,
        **choices: Unpack[Choices],
    ) -> None:
        self.framework = framework
        self.keeps_texts = keeps_texts
        self.trigger_tokens = trigger_tokens
        self.tells = choices.pop("tell", False)
        self.gives_pins = choices.pop("pins", False)
        self.on_return = choices.pop("on_return", None)
        if not (self.on_return in (None, STOP) or callable(self.on_return)):
            raise ConfigurationError("on_return", self.on_return, "None, 'stop' or a function")
        self.only_reads = not (self.tells or self.gives_pins) and self.on_return is None
        if not (monitor is None or isinstance(monitor, ContextMonitor)):
            raise ConfigurationError("monitor", type(monitor).__name__, "a ContextMonitor")
        for name in choices:
            if name not in Choices.__annotations__:
                allowed = f"one of {', '.join(Choices.__annotations__)}"
                raise ConfigurationError("keyword", name, allowed)
            if monitor is not None:
                raise ConfigurationError(name, "…", f"given to the monitor {monitor.agent_id}")
        self.clock = choices.get("clock") or SYSTEM_CLOCK
        self._given = monitor
        self._choices = choices
        self._agents: dict[str, WatchedAgent] = {}
        self._lock = threading.Lock()
        self._own: str | None = None
        self._swept_at = self.clock.monotonic()
        self._has_checked_trigger = trigger_tokens is None
        self.nobody = WatchedAgent(self, None, is_child=False)

    def begin(
        self,
        agent_id: str | None = None,
        *,
        name: str | None = None,
        parent_id: str | None = None,
        alone: bool = False,
        is_new: bool = False,
    ) -> WatchedAgent:
        """Return the agent of a run: the one of an earlier turn, else a new one that was started.

        A conversation that comes back has its last reading, also where another process had it.

        The parent is the agent in whose tool this is called. May block while the start is stored;
        in an event loop call it in a thread.

        Args:
            agent_id: Of the earlier turn; None = a new conversation.
            name: The framework's name of the agent, for people.
            parent_id: Its parent, where the program says it; None = the agent whose tool this is.
            alone: Whether a run that comes while another one of the same id is under way is an
                agent of its own.
            is_new: Whether the framework begins the conversation now: what an earlier one of the
                same name left is not its reading.
        """
        caller = current_agent()
        if disabled():
            return self.nobody
        # Of all adapters: one that is not used any more would never look for itself.
        for adapter in {self, *_open}:
            adapter.end_idle()
        known = self._agents.get(agent_id or "")
        if known is not None and known.active:
            # A second run at the same time fills a window of its own.
            if alone and not known.is_resting:
                agent_id = None
            elif self._has_left(known):
                self._forget(known)
            else:
                known.active.working()
                known.is_resting = known.is_paused = False
                return known
        parent = None if caller is None else caller.monitor
        if self._given is None or parent is self._given:
            if parent is not None:
                parent_id = parent.agent_id
            return self._start(agent_id, parent_id, name, alone=alone, is_new=is_new)
        if not self._given.is_active:
            _log.warning("a run of %s is not watched: %r", self.framework, self._given)
            return self.nobody
        if self.trigger_tokens is not None:
            self._given.set_host_limits(trigger_tokens=self.trigger_tokens)
        return self._keep(self._given, is_child=False)

    @staticmethod
    def _has_left(agent: WatchedAgent) -> bool:
        """Whether another process continued the conversation while it waited here."""
        monitor = agent.monitor
        assert monitor is not None
        return monitor.is_fenced or (agent.is_resting and monitor.leave_if_taken())

    def _waits_elsewhere(self, agent_id: str) -> bool:
        """Whether the conversation of that id waits in another process, which may be continued."""
        record = find_record(as_backend(self._choices.get("backend")), agent_id)
        return record is not None and record.phase == "waiting"

    def _start(
        self,
        agent_id: str | None,
        parent_id: str | None,
        name: str | None,
        **how: bool,
    ) -> WatchedAgent:
        made = {key: value for key, value in self._choices.items() if value is not None}
        if made.get("label") is None and name:
            made["label"] = name
        if parent_id is not None:
            made["parent_id"] = parent_id
            # The default would be the id in the environment, which is that of the parent.
            agent_id = agent_id or generate_agent_id()
            if self._given is not None:
                made["config"] = self._given.config
        try:
            monitor = self._start_monitor(agent_id, made, **how)
            if self.trigger_tokens is not None:
                monitor.set_host_limits(trigger_tokens=self.trigger_tokens)
        except UltramonError as error:
            _log.warning("a run of %s is not watched: %s", self.framework, error)
            return self.nobody
        return self._keep(monitor, is_child=parent_id is not None)

    def _start_monitor(
        self, agent_id: str | None, made: dict[str, Any], *, alone: bool, is_new: bool
    ) -> ContextMonitor:
        comes_back = agent_id is not None and not is_new
        try:
            return create_context_monitor(agent_id, resumes=comes_back, **made).start()
        except AgentAlreadyRunningError:
            # A server has several workers: a conversation that waits may be continued by each of
            # them.
            if agent_id is not None and comes_back and self._waits_elsewhere(agent_id):
                return create_context_monitor(agent_id, resumes=True, takeover=True, **made).start()
            if not alone:
                raise
            return create_context_monitor(generate_agent_id(), **made).start()

    def conversation_id(self, *names: str) -> str:
        """Return the id of a conversation's agent: the same in every process of the run.

        The first one of a process that has an ``ULTRAMON_AGENT_ID`` is that agent.

        Args:
            names: What names it in its framework; other names are another agent.
        """
        derived, own = self.derived_id(*names), os.environ.get("ULTRAMON_AGENT_ID")
        # The id in the environment is for one conversation, the first.
        if not own or current_agent() is not None or self._own not in (None, derived):
            return derived
        self._own = derived
        return own

    def derived_id(self, *names: str) -> str:
        """Return the id that names lead to, whatever the process is; as `conversation_id`."""
        run = self._choices.get("run") or os.environ.get("ULTRAMON_RUN") or "default"
        named = "\0".join((self.framework, run, *names)).encode("utf-8", "surrogatepass")
        # A hash: two users or frameworks may have the same names, and names need not be an agent
        # id.
        kind = "-".join(self.framework.lower().split())
        return f"{kind}-{sha256(named).hexdigest()[:32]}"

    def _keep(self, monitor: ContextMonitor, *, is_child: bool) -> WatchedAgent:
        with self._lock:
            agent = self._agents.get(monitor.agent_id)
            if agent is None or agent.monitor is not monitor:
                agent = WatchedAgent(self, monitor, is_child=is_child)
                self._agents[monitor.agent_id] = agent
            if monitor is not self._given:
                _open.add(self)
        return agent

    def get(self, agent_id: str) -> WatchedAgent | None:
        """Return a watched agent; None when this process does not hold it."""
        return self._agents.get(agent_id)

    def check_trigger(self, monitor: ContextMonitor) -> None:
        """Say once where the framework can never compact: its trigger is above the limit."""
        if self._has_checked_trigger:
            return
        self._has_checked_trigger = True
        state = monitor.get_state()
        if state.context_limit is not None and state.limit_source != "host":
            _log.warning(
                "agent %s: %s compacts at %s tokens, which the limit of %s tokens (%s) does not "
                "let it reach",
                monitor.agent_id,
                self.framework,
                f"{self.trigger_tokens:,}",
                f"{state.context_limit:,}",
                state.limit_source,
            )

    @property
    def agents(self) -> list[WatchedAgent]:
        """The agents that have not ended, in the order of their starts."""
        return list(self._agents.values())

    def finish(self, agent: WatchedAgent, *, goes_on: bool = False) -> None:
        """End the run of an agent.

        Args:
            agent: Whose run it was.
            goes_on: Whether its conversation may continue: the agent waits then, and is not stale.
        """
        monitor = agent.active
        agent.used_at = self.clock.monotonic()
        if monitor is not None and goes_on and agent.handoff is None and agent.error is None:
            monitor.waiting()
            agent.is_resting = True
            # Now: a process that continues it reads in its state that it waits.
            monitor.update_heartbeat()
        else:
            self._end(agent)

    def close(self) -> None:
        """End every agent that this adapter started; those of failed runs as ``failed``."""
        # One that a parent waits for ends before it, as in its run.
        self._end(*reversed(self.agents))

    def _end(self, *agents: WatchedAgent) -> None:
        ends = []
        for agent in agents:
            monitor = agent.monitor
            if monitor is None or monitor is self._given:
                continue
            if monitor.is_active and agent.is_calling and agent.error is None:
                agent.error = LostCallError
            ends.append((monitor, agent.error))
        # One by one 300 ends took 5.2 s on a busy machine, together 0.4 s.
        exit_together(ends)
        for agent in agents:
            if agent.monitor is not None and agent.monitor is not self._given:
                self._forget(agent)

    def _forget(self, agent: WatchedAgent) -> None:
        monitor = agent.monitor
        assert monitor is not None
        with self._lock:
            if self._agents.get(monitor.agent_id) is agent:
                del self._agents[monitor.agent_id]
            if all(one.monitor is self._given for one in self._agents.values()):
                _open.discard(self)

    def end_idle(self) -> None:
        """End the agents that were not used for long; looks now and then only."""
        now = self.clock.monotonic()
        # What was idle for ten minutes may end a minute later.
        if now - self._swept_at < IDLE_SECONDS / 10:
            return
        self._swept_at = now
        self._end(*filter(self._is_idle, self.agents))

    def _is_idle(self, agent: WatchedAgent) -> bool:
        is_over = agent.is_resting or agent.error is not None
        longest = IDLE_SECONDS if is_over else SILENT_SECONDS
        return not agent.running_tools and self.clock.monotonic() - agent.used_at >= longest


_open: set[Adapter] = set()
"""Adapters with agents that have not ended: a process that ends without this would lose them."""


@atexit.register
def _close_all() -> None:
    for adapter in tuple(_open):
        adapter.close()
