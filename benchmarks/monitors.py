"""Calls per second of a monitor that saves, the stall of an event loop, and state machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Callable

from ultramon import ContextConfig, ContextMonitor, create_context_monitor
from ultramon.context.ladder import Ladder, next_level

TEXT = ("The quick brown fox jumps over the lazy dog. def f(x): return x + 1\n" * 30)[:2000]
SECONDS = 0.5
REPEATS = 7


def rate(call: Callable[[], object]) -> float:
    """Return calls per second, counted in blocks of 100 over half a second."""
    deadline = time.perf_counter() + SECONDS
    began = time.perf_counter()
    calls = 0
    while time.perf_counter() < deadline:
        for _ in range(100):
            call()
        calls += 100
    return calls / (time.perf_counter() - began)


def compared(rows: dict[str, Callable[[], object]]) -> str:
    """Measure the rows in turn, several times, and return a table of medians."""
    rates: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(REPEATS):
        for name, call in rows.items():
            rates[name].append(rate(call))
    lines = ["| what | calls/s | µs a call |", "|---|---|---|"]
    for name, values in rates.items():
        median = statistics.median(values)
        lines.append(f"| {name} | {median:,.0f} | {1e6 / median:.2f} |")
    return "\n".join(lines)


def tracking() -> str:
    """Compare `track_content` of 2 kB of ASCII, saving on, with counting alone."""
    big = ContextConfig(context_window_tokens=1_000_000_000)
    chars = ContextConfig(context_window_tokens=1_000_000_000, tokenizer_family="chars/4")
    with create_context_monitor("bench", big) as ours, create_context_monitor("plain", chars) as c4:
        rows: dict[str, Callable[[], object]] = {
            "track_content, saving on": lambda: ours.track_content(TEXT),
            "the same, family chars/4": lambda: c4.track_content(TEXT),
        }
        try:
            from langchain_core.messages import HumanMessage
            from langchain_core.messages.utils import count_tokens_approximately
        except ImportError:
            pass
        else:
            messages = [HumanMessage(TEXT)]
            rows["LangChain count_tokens_approximately"] = lambda: count_tokens_approximately(
                messages
            )
        return compared(rows)


def machines() -> str:
    """Compare deciding a level with what state machine libraries take for a trigger."""
    from transitions import Machine

    class Model:
        pass

    model = Model()
    Machine(
        model,
        states=["a", "b"],
        initial="a",
        transitions=[["go", "a", "b"], ["go", "b", "a"]],
        auto_transitions=False,
    )
    ladder = Ladder.default().resolve(200_000)
    rows: dict[str, Callable[[], object]] = {
        "next_level (ours, pure)": lambda: next_level("normal", 0.5, ladder),
        "transitions trigger": model.go,  # type: ignore[attr-defined]
    }
    try:
        from statemachine import State, StateMachine
    except ImportError:
        pass
    else:

        class Two(StateMachine):
            a = State(initial=True)
            b = State()
            go = a.to(b) | b.to(a)

        other = Two()
        rows["python-statemachine send"] = lambda: other.send("go")
    return compared(rows)


async def _loop_stall(monitors: int, tasks: int) -> tuple[float, float]:
    stalls: list[float] = []
    done = asyncio.Event()

    async def tick() -> None:
        while not done.is_set():
            began = time.perf_counter()
            await asyncio.sleep(0)
            stalls.append(time.perf_counter() - began)

    async def work(monitor: ContextMonitor | None) -> None:
        for number in range(tasks):
            if monitor is not None:
                with monitor.task(f"task {number}"):
                    monitor.track_content(TEXT)
            await asyncio.sleep(0.005)

    config = ContextConfig(context_window_tokens=1_000_000_000)
    async with contextlib.AsyncExitStack() as stack:
        agents: list[ContextMonitor | None] = [
            await stack.enter_async_context(create_context_monitor(f"loop-{number}", config))
            for number in range(monitors)
        ]
        ticker = asyncio.create_task(tick())
        await asyncio.gather(*(work(agent) for agent in agents or [None] * 20))
        done.set()
        await ticker
    stalls.sort()
    return stalls[-1] * 1000, stalls[int(len(stalls) * 0.999)] * 1000


def event_loop() -> str:
    """Return how long the loop stalls while 20 monitors complete 200 tasks each."""
    lines = ["| monitors in one loop | longest stall ms | 99.9 % ms |", "|---|---|---|"]
    for monitors in (0, 20):
        runs = [asyncio.run(_loop_stall(monitors, 200)) for _ in range(5)]
        longest = statistics.median(run[0] for run in runs)
        usual = statistics.median(run[1] for run in runs)
        lines.append(f"| {monitors} | {longest:.2f} | {usual:.2f} |")
    return "\n".join(lines)


def main() -> str:
    with tempfile.TemporaryDirectory() as directory:
        os.environ["ULTRAMON_STATE_DIR"] = directory
        return "\n\n".join(
            [
                "### track_content, 2 kB of ASCII",
                tracking(),
                "### Deciding a level",
                machines(),
                "### An event loop with monitors completing tasks",
                event_loop(),
            ]
        )


if __name__ == "__main__":
    print(main())
