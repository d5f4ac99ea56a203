"""Monitors in an event loop: outcomes on cancellation, handlers, and nothing that blocks."""

import asyncio
import threading

import pytest

import ultramon
from ultramon.testing import fill

LIMIT = {"context_limit_tokens": 100_000}


def stored(store, agent_id="scout-1"):
    return store.load(agent_id).record


@pytest.fixture
def handlers():
    """Connect handlers for one test."""
    connected = []

    def connect(name, handler, agent_id=None):
        ultramon.on(name, agent_id)(handler)
        connected.append(handler)

    yield connect
    for handler in connected:
        ultramon.off(handler)


def test_an_async_block_ends_as_completed(make, store):
    """The async form of the block does the same as the other one."""

    async def agent():
        async with make("scout-1") as monitor:
            assert stored(store).active
            await asyncio.sleep(0)
            return monitor

    assert asyncio.run(agent()).get_state().outcome == "completed"
    assert stored(store).outcome == "completed"


def test_entering_starts_a_monitor(store, ultramon_clock):
    """An async block starts the monitor and ends it; its files are written in another thread."""

    async def agent():
        monitor = ultramon.create_context_monitor("scout-1", backend=store, clock=ultramon_clock)
        async with monitor as entered:
            assert entered is monitor
            assert stored(store).active

    asyncio.run(agent())
    assert not stored(store).active


def test_a_cancelled_task_is_a_cancelled_agent(make, store):
    """Cancelling the task ends the agent as cancelled, and is raised further."""

    async def agent(entered):
        async with make("scout-1"):
            entered.set()
            await asyncio.Event().wait()

    async def main():
        entered = asyncio.Event()
        task = asyncio.create_task(agent(entered))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (stored(store).outcome, stored(store).exit) == ("cancelled", None)


def test_a_task_cancelled_twice_is_stored_all_the_same(make, store):
    """A second cancellation while the block is left does not lose the last state."""

    async def agent(entered):
        async with make("scout-1"):
            entered.set()
            await asyncio.Event().wait()

    async def main():
        entered = asyncio.Event()
        task = asyncio.create_task(agent(entered))
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stored(store).outcome == "cancelled"


def test_a_start_that_is_cancelled_leaves_no_running_agent(store, ultramon_clock):
    """An agent whose task is cancelled before its block begins is not left behind as active."""
    monitor = ultramon.create_context_monitor("scout-1", backend=store, clock=ultramon_clock)

    async def agent():
        async with monitor:
            raise AssertionError("the block began")

    async def main():
        task = asyncio.create_task(agent())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert stored(store).outcome == "cancelled"


def test_an_exception_in_an_async_block_is_a_failure(make, store):
    """The type of the exception is in the state, and the exception is raised further."""

    async def agent():
        async with make("scout-1"):
            raise LookupError("x")

    with pytest.raises(LookupError):
        asyncio.run(agent())
    assert stored(store).outcome == "failed"
    assert stored(store).exit == {"error": "LookupError", "message": "LookupError: x"}


def test_a_failing_group_cancels_its_other_agents(make, store):
    """In a task group one failure ends the others as cancelled."""

    async def agent(agent_id, started, fails):
        async with make(agent_id):
            started.set()
            if fails:
                raise ValueError(agent_id)
            await asyncio.Event().wait()

    async def main():
        started = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(agent("steady", started[0], fails=False))
            await started[0].wait()
            group.create_task(agent("broken", started[1], fails=True))

    with pytest.raises(ExceptionGroup):
        asyncio.run(main())
    outcomes = {agent.agent_id: agent.record.outcome for agent in store.list_agents()}
    assert outcomes == {"steady": "cancelled", "broken": "failed"}


def test_async_handlers_run_in_the_loop(make, handlers):
    """A coroutine handler becomes a task of the running loop."""
    seen = []

    async def handle(event):
        await asyncio.sleep(0)
        seen.append((event.level, threading.current_thread() is threading.main_thread()))

    handlers("threshold", handle)

    async def agent():
        async with make("scout-1", **LIMIT) as monitor:
            fill(monitor, 0.72)
            while not seen:
                await asyncio.sleep(0)

    asyncio.run(agent())
    assert seen == [("warning", True)]


def test_async_handlers_run_without_a_loop(make, handlers):
    """Where no loop runs, a coroutine handler has ended when the call returns."""
    seen = []

    async def handle(event):
        await asyncio.sleep(0)
        seen.append(event.level)

    handlers("threshold", handle)
    fill(make("scout-1", **LIMIT), 0.9)
    assert seen == ["critical"]


def test_handlers_may_be_lambdas_for_one_agent(make, handlers):
    """A handler that nobody else holds stays connected, and hears only the agent it asked for."""
    seen = []
    handlers("threshold", lambda event: seen.append(event.agent_id), "scout-2")
    for agent_id in ("scout-1", "scout-2"):
        fill(make(agent_id, **LIMIT), 0.9)
    assert seen == ["scout-2"]


def test_twenty_agents_in_one_loop_lose_nothing(make, store, ultramon_clock):
    """Agents that share a loop complete all their tasks, each with its own count."""

    async def agent(agent_id):
        async with make(agent_id) as monitor:
            monitor.plan(f"item {number}" for number in range(20))
            for item in monitor.pending():
                with monitor.task(item):
                    await asyncio.sleep(0)

    async def main():
        await asyncio.gather(*(agent(f"scout-{number}") for number in range(20)))

    asyncio.run(main())
    ends = [(agent.record.outcome, agent.record.tasks_completed) for agent in store.list_agents()]
    assert ends == [("completed", 20)] * 20
