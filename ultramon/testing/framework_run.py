"""One run of a framework's agent on a model that serves a script, for `IntegrationContract`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ultramon.backends.memory import MemoryBackend
from ultramon.context.config import ContextConfig
from ultramon.integrations import current_monitor
from ultramon.state.models import AgentState

if TYPE_CHECKING:
    from ultramon.backends.base import Backend
    from ultramon.monitor.monitor import ContextMonitor

MODES = ("plain", "async", "streaming", "nested")
# Of `WINDOW_TOKENS`: below the ladder, past its warning, and twice past its critical rung.
TURNS = ((10_000, 50), (72_000, 60), (88_000, 70), (89_000, 80))
"""Input and output tokens of each response; all but the last call the tool."""
WINDOW_TOKENS = 100_000
NOTE = "Context window: "
"""How the facts that an agent is given begin."""


@dataclass
class ModelScript:
    """One agent's responses, and what was seen while it ran.

    Attributes:
        turns: Input and output tokens of each response.
        requests: What the model was sent, as text.
        readings: Tokens and their source, as the tool saw them in each of its calls.
        served: How many responses the model gave.
    """

    turns: tuple[tuple[int, int], ...] = TURNS
    requests: list[str] = field(default_factory=list)
    readings: list[tuple[int, str]] = field(default_factory=list)
    served: int = 0

    def next_turn(self, request: object) -> tuple[int, int, bool]:
        """Keep a request; return input tokens, output tokens, and whether the tool is called."""
        self.requests.append(str(request))
        tokens, output_tokens = self.turns[self.served]
        self.served += 1
        return tokens, output_tokens, self.served < len(self.turns)

    def look(self) -> str:
        """Be the tool: see the reading from inside the run, and work on the plan."""
        return self.look_at(current_monitor())

    def look_at(self, monitor: ContextMonitor | None) -> str:
        """Do the same with a monitor that the tool finds in its own way."""
        if monitor is not None:
            state = monitor.get_state()
            self.readings.append((state.estimated_tokens, state.tokens_source))
            if len(self.readings) == 1:
                # Once: every turn calls the tool, and a plan made twice would say nothing about the
                # first.
                monitor.plan(["first", "second"])
                monitor.complete_task("first")
        return "seen"


@dataclass
class FrameworkRun:
    """One run of an agent in a mode, and what it left.

    Attributes:
        mode: One of `MODES`.
        outer: The agent; in the mode ``nested`` its tool runs another agent.
        inner: The nested agent.
        backend: Where the states are.
        choices: For the adapter, beside what every run needs.
        history: What the framework has stored of the conversation, as text.
        handoff_id: Of the handoff that the end of the run names.
    """

    mode: str
    outer: ModelScript = field(default_factory=ModelScript)
    inner: ModelScript = field(default_factory=ModelScript)
    backend: Backend = field(default_factory=MemoryBackend)
    choices: dict[str, Any] = field(default_factory=dict)
    history: str = ""
    handoff_id: str | None = None

    def adapter_choices(self) -> dict[str, Any]:
        """Return the keywords of the adapter."""
        config = ContextConfig(context_window_tokens=WINDOW_TOKENS, on_error="raise")
        return {"config": config, "backend": self.backend, **self.choices}

    def scripts(self) -> list[ModelScript]:
        """Return the scripts of the agents that this mode runs."""
        return [self.outer, self.inner] if self.mode == "nested" else [self.outer]

    def states(self) -> list[AgentState]:
        """Return the stored states of all agents of the run."""
        records = [agent.record for agent in self.backend.list_agents()]
        return [AgentState.from_record(record) for record in records if record is not None]
