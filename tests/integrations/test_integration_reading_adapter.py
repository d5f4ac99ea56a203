"""Adapters that only read: refused choices, and calls that come at once."""

from __future__ import annotations

import threading

import pytest

from ultramon import ConfigurationError
from ultramon.backends.memory import MemoryBackend
from ultramon.integrations.reading_adapter import ReadingAdapter

WAIT_SECONDS = 30


class SlowStore(MemoryBackend):
    """Holds the start of the first agent until it is released."""

    def __init__(self):
        super().__init__()
        self.is_starting, self.may_go_on = threading.Event(), threading.Event()

    def start_agent(self, *given, **named):
        if not self.is_starting.is_set():
            self.is_starting.set()
            assert self.may_go_on.wait(WAIT_SECONDS)
        return super().start_agent(*given, **named)


class SeenLock:
    """A lock that says when somebody waits for it."""

    def __init__(self):
        self._lock, self.waits = threading.Lock(), threading.Event()

    def __enter__(self):
        if not self._lock.acquire(blocking=False):
            self.waits.set()
            self._lock.acquire()

    def __exit__(self, *_details):
        self._lock.release()


@pytest.mark.parametrize("agent_id", [None, "scout"])
def test_calls_that_come_while_an_agent_begins_are_its_calls(agent_id):
    """The first two answers arrive at once; nothing is begun twice."""
    store, found = SlowStore(), []
    adapter = ReadingAdapter("a logger", "LiteLLM", backend=store)
    lock = adapter._begins = SeenLock()

    def call():
        found.append(adapter.agent_of_call(agent_id))
        # A second agent would come as far as this while the first one is started.
        lock.waits.set()

    threads = [threading.Thread(target=call) for _number in range(2)]
    threads[0].start()
    assert store.is_starting.wait(WAIT_SECONDS)
    threads[1].start()
    assert lock.waits.wait(WAIT_SECONDS)
    store.may_go_on.set()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert found == [*adapter.agents] * 2
    adapter.close()
    assert len(store.list_agents()) == 1


@pytest.mark.parametrize("choice", [{"tell": True}, {"on_return": "stop"}])
def test_it_can_neither_add_to_a_call_nor_end_a_run(choice):
    """It says so at once, by the name of what its user has made."""
    with pytest.raises(ConfigurationError, match="a logger only reads"):
        ReadingAdapter("a logger", "LiteLLM", **choice)
