"""How each framework is driven by a model of its own kind that serves what a script says.

Each file drives one adapter in the modes `MODES`; `tests/test_frameworks.py` runs them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ultramon import ContextConfig
from ultramon.backends.memory import MemoryBackend
from ultramon.integrations import current_monitor

MODES = ("plain", "async", "streaming", "nested")
TURNS = ((10_000, 50), (72_000, 60), (88_000, 70), (89_000, 80))
"""Input and output tokens of each response; all but the last call the tool."""
WINDOW_TOKENS = 100_000
NOTE = "Context window: "


@dataclass
class Script:
    """One agent's responses, and what was seen while it ran."""

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
        """The tool: see the reading from inside the run, and work on the plan."""
        monitor = current_monitor()
        if monitor is not None:
            state = monitor.get_state()
            self.readings.append((state.estimated_tokens, state.tokens_source))
            if len(self.readings) == 1:
                monitor.plan(["first", "second"])
                monitor.complete_task("first")
        return "seen"


@dataclass
class Run:
    """One run of an agent in a mode, and what it left.

    Attributes:
        outer: The agent; in the mode ``nested`` its tool runs another agent.
        inner: The nested agent.
        choices: For the adapter.
        history: What the framework has stored of the conversation, as text.
        handoff_id: Of the handoff that the end of the run names.
    """

    mode: str
    outer: Script = field(default_factory=Script)
    inner: Script = field(default_factory=Script)
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    choices: dict[str, Any] = field(default_factory=dict)
    history: str = ""
    handoff_id: str | None = None

    def adapter_choices(self) -> dict[str, Any]:
        config = ContextConfig(context_window_tokens=WINDOW_TOKENS, on_error="raise")
        return {"config": config, "backend": self.backend, **self.choices}

    def states(self) -> list[Any]:
        from ultramon import AgentState

        return [AgentState.from_record(agent.record) for agent in self.backend.list_agents()]
