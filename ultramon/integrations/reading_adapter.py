"""What the adapters share that only read: each call names its agent, and none is begun twice."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ultramon.errors import ConfigurationError
from ultramon.integrations.adapter import Adapter

if TYPE_CHECKING:
    from typing import Unpack

    from ultramon.integrations.adapter import Choices, WatchedAgent
    from ultramon.monitor.monitor import ContextMonitor


class ReadingAdapter(Adapter):
    """An adapter that can neither add to a call nor end a run.

    Args:
        what: What its user has made, for texts of errors, e.g. ``a logger``.
        framework: As for `Adapter`, and so are monitor and choices.

    Raises:
        ConfigurationError: As by `Adapter`, and ``tell``, ``on_return`` or ``pins`` is among the
            choices.
    """

    def __init__(
        self,
        what: str,
        framework: str,
        monitor: ContextMonitor | None = None,
        **choices: Unpack[Choices],
    ) -> None:
        for name in ("tell", "on_return", "pins"):
            if choices.get(name):
                raise ConfigurationError(name, choices[name], f"not given: {what} only reads")
        super().__init__(framework, monitor, **choices)
        self._nameless_id: str | None = None
        self._begins = threading.Lock()

    def agent_of_call(
        self, agent_id: str | None = None, parent_id: str | None = None
    ) -> WatchedAgent:
        """Return the agent that made a call; may block, as `begin`.

        Args:
            agent_id: As the call names it; those without a name are one agent.
            parent_id: Its parent, where the call names it.
        """
        # Calls that come at once, from threads or tasks, are still those of one agent.
        with self._begins:
            agent = self.begin(agent_id or self._nameless_id, parent_id=parent_id)
            if agent_id is None and agent.monitor is not None:
                self._nameless_id = agent.monitor.agent_id
        return agent

    def knows(self, agent_id: str | None = None) -> bool:
        """Whether the agent of a call has begun, so that asking for it does not block."""
        agent = self.get(agent_id or self._nameless_id or "")
        return agent is not None and agent.active is not None

    @property
    def nameless(self) -> WatchedAgent | None:
        """The agent of calls that name none, without blocking; None before it begins."""
        agent = self.get(self._nameless_id or "")
        return agent if agent is not None and agent.active else None
