"""Agents that follow a script, signals as a list, and a monitor filled to a ratio."""

from __future__ import annotations

from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any

from ultramon import signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from ultramon.context.levels import ThresholdAction
    from ultramon.handoff import HandoffRecord
    from ultramon.monitor.monitor import ContextMonitor
    from ultramon.state.events import Event

    Step = tuple[str, *tuple[Any, ...]]
else:
    Step = tuple


@contextmanager
def capture_signals(agent_id: str | None = None) -> Iterator[list[tuple[str, Event]]]:
    """Collect the signals of a block, in order, as (name, event).

    Args:
        agent_id: Only those of this agent; None = of all.
    """
    seen: list[tuple[str, Event]] = []

    def receiver_for(name: str) -> Callable[..., None]:
        def receive(sender: str, event: Event) -> None:
            if agent_id in (None, sender):
                seen.append((name, event))

        return receive

    connected = [(signal, receiver_for(signal.name)) for signal in signals.FRIENDLY_NAMES.values()]
    for signal, receive in connected:
        # The receivers have no other reference: a weak one would be gone at once.
        signal.connect(receive, weak=False)
    try:
        yield seen
    finally:
        for signal, receive in connected:
            signal.disconnect(receive)


def fill(monitor: ContextMonitor, ratio: float) -> ThresholdAction:
    """Report the usage that brings a monitor to a usage ratio.

    Works for every model, limit and tokenizer family. As from a provider, a fall of more than
    30 % is taken for a compaction, and more tokens than a window holds whose limit was not
    configured make that limit suspect.

    Args:
        monitor: An active monitor with a known limit.
        ratio: 0.0 and more. A ratio that lies between two whole tokens is rounded up.

    Returns:
        The action after the report.

    Raises:
        ValueError: The limit is unknown, so there is no ratio; or the ratio would be 0 tokens.
    """
    limit = monitor.get_state().context_limit
    if limit is None:
        raise ValueError(f"agent {monitor.agent_id}: its context limit is unknown")
    # Float noise must not turn 0.85 of 200,000 into 170,001.
    tokens = ceil(ratio * limit - 1e-6)
    if tokens <= 0:
        raise ValueError(f"agent {monitor.agent_id}: a report of {tokens} tokens is no reading")
    return monitor.report_usage(input_tokens=tokens)


class ScriptedAgent:
    """Follows a script through a real monitor and keeps the monitor's answers.

    A step is a tuple of a verb and its arguments:

    - ``("track", text_or_chars)``: text that enters the window; a number is so many ``x``
    - ``("report", input_tokens)``: the provider's count of one response
    - ``("fill", ratio)``: a report that makes the usage ratio so much
    - ``("compact", tokens_after)``, ``("clear",)``: a new epoch
    - ``("task", name)``: begins and completes an item; ``("begin", name)`` only begins it
    - ``("wait",)``, ``("work",)``: phase waiting, phase working
    - ``("advance", seconds)``: time passes on the agent's clock
    - ``("hand_off", notes)``: leaves a handoff; the notes are optional
    - ``("stop", outcome)``: ends; the outcome is optional
    - ``("vanish",)``: does nothing more, like a killed process; the rest of the script is not run

    Args:
        monitor: A monitor, started or not; `run` starts it.
        script: The steps.
        advance: Moves the clock of the monitor, e.g. `FakeClock.advance`; needed for ``advance``.

    Attributes:
        actions: The monitor's answer to each ``track``, ``report``, ``fill``, ``compact`` and
            ``clear``, in order.
        handoff: The record of the last ``hand_off``; None before.
    """

    def __init__(
        self,
        monitor: ContextMonitor,
        script: Iterable[Step],
        *,
        advance: Callable[[float], None] | None = None,
    ) -> None:
        self.monitor = monitor
        self.actions: list[ThresholdAction] = []
        self.handoff: HandoffRecord | None = None
        self._script = list(script)
        # A task block without a reference is closed, which would interrupt the task.
        self._begun: list[AbstractContextManager[None]] = []
        self._verbs: dict[str, Callable[..., object]] = {
            "track": self._track,
            "report": lambda tokens: monitor.report_usage(input_tokens=tokens),
            "fill": lambda ratio: fill(monitor, ratio),
            "compact": monitor.record_compaction,
            "clear": monitor.clear,
            "task": self._task,
            "begin": self._begin,
            "wait": monitor.waiting,
            "work": monitor.working,
            "advance": advance or self._no_clock,
            "hand_off": self._hand_off,
            "stop": monitor.stop,
        }

    @property
    def levels(self) -> list[str]:
        """The levels of `actions`."""
        return [str(action.level) for action in self.actions]

    def run(self) -> ScriptedAgent:
        """Run the whole script.

        Raises:
            ValueError: A step has an unknown verb; the steps before it have been done.
        """
        # No `with` block: its end would stop the agent, and a script may leave it running.
        self.monitor.__enter__()
        for verb, *arguments in self._script:
            if verb == "vanish":
                break
            if verb not in self._verbs:
                known = ", ".join([*self._verbs, "vanish"])
                raise ValueError(f"no step {verb!r}: choose one of {known}")
            answer = self._verbs[verb](*arguments)
            # Only what measures is answered by an action.
            if verb in ("track", "report", "fill", "compact", "clear"):
                self.actions.append(answer)  # type: ignore[arg-type]
        return self

    def _track(self, text: str | int) -> ThresholdAction:
        return self.monitor.track_content("x" * text if isinstance(text, int) else text)

    def _task(self, name: str) -> None:
        with self.monitor.task(name):
            pass

    def _begin(self, name: str) -> None:
        block = self.monitor.task(name)
        block.__enter__()
        self._begun.append(block)

    def _hand_off(self, notes: str | None = None) -> None:
        self.handoff = self.monitor.hand_off(notes=notes)

    @staticmethod
    def _no_clock(seconds: float) -> None:
        raise ValueError(f"cannot advance by {seconds} s: give the agent advance=clock.advance")
