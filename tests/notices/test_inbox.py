"""How a recipient in Python gets its notices: handlers, signals, polling, and what may go wrong."""

from __future__ import annotations

import logging
import threading
from contextlib import closing

import pytest

import ultramon
from ultramon import ConfigurationError, Inbox, Notice, queue_message
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import InvalidAgentIdError, StateWriteError
from ultramon.testing import FakeClock, capture_signals


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def backend():
    return MemoryBackend()


@pytest.fixture
def inbox(backend, clock):
    return Inbox("boss", backend=backend, clock=clock)


@pytest.fixture
def send(backend, clock):
    return lambda text, **more: queue_message("boss", text, backend=backend, clock=clock, **more)


def test_a_handler_gets_every_notice_once(inbox, send):
    """Urgent first, more than one batch in one poll, and nothing left behind."""
    heard = []
    inbox.on_notice(heard.append)
    for number in range(25):
        send(str(number))
    send("now", delivery="urgent", sender="scout", category="context_monitor")
    taken = inbox.poll()
    assert [notice.text for notice in taken] == ["now", *map(str, range(25))]
    assert heard == taken
    assert isinstance(taken[0], Notice)
    assert (taken[0].agent_id, taken[0].recipient) == ("scout", "boss")
    assert inbox.poll() == inbox.peek() == []


def test_a_handler_that_raises_gets_it_again(inbox, send, clock, caplog):
    """It is logged, the others are handled, and after the fifth time the notice is dead."""
    heard = []

    @inbox.on_notice
    def fail(notice):
        heard.append((notice.text, notice.attempts))
        if notice.text == "bad":
            raise ValueError("not this one")

    send("bad")
    send("good")
    with caplog.at_level(logging.ERROR, "ultramon.routing"):
        assert [notice.text for notice in inbox.poll()] == ["good"]
        for pause in (2, 4, 8, 16):
            assert inbox.poll() == []
            clock.advance(pause)
            inbox.poll()
    clock.advance(3600)
    assert inbox.poll() == []
    assert heard == [("bad", 1), ("good", 1), ("bad", 2), ("bad", 3), ("bad", 4), ("bad", 5)]
    assert "a notice handler raised" in caplog.text
    (dead,) = inbox._queue.dead()
    assert dead.last_error == "ValueError: not this one"


def test_slow_handlers_keep_what_they_hold(backend, clock, inbox, send):
    """A batch outlives its lease as long as nobody else took the rest; what is taken is skipped."""
    other = Inbox("boss", backend=backend, clock=clock)
    heard, taken = [], []

    @inbox.on_notice
    def slow(notice):
        heard.append(notice.text)
        clock.advance(16)
        if notice.text == "two":
            taken.extend(other.receive(limit=1))

    for text in ("one", "two", "three", "four"):
        send(text)
    assert [notice.text for notice in inbox.poll()] == ["one", "two", "four"]
    assert [notice.text for notice in taken] == ["three"]
    assert heard == ["one", "two", "four"]
    assert other.acknowledge(taken[0])


def test_signals_say_what_an_inbox_received(inbox, send):
    """Handlers of `on` hear their agent's notices; one that raises stops no other."""
    heard = []

    @ultramon.on("notice", agent_id="boss")
    def mine(notice):
        heard.append(notice.text)

    @ultramon.on("notice", agent_id="other")
    def others(notice):
        heard.append("never")

    try:
        send("hello")
        with capture_signals("boss") as seen:
            (notice,) = inbox.poll()
    finally:
        ultramon.off(mine)
        ultramon.off(others)
    assert heard == ["hello"]
    assert seen == [("notice_queued", notice)]


def test_notices_can_be_received_by_hand(inbox, send, clock):
    """Received ones are acknowledged, extended or given back; a slow receiver gets False."""
    for text in ("one", "two", "three"):
        send(text)
    assert [notice.text for notice in inbox.peek()] == ["one", "two", "three"]
    one, two = inbox.receive(limit=2)
    assert inbox.acknowledge(one)
    assert not inbox.acknowledge(one)
    clock.advance(20)
    assert inbox.extend(two)
    clock.advance(20)
    assert [notice.text for notice in inbox.receive()] == ["three"]
    assert inbox.reject(two, "later")
    clock.advance(4)
    (again,) = inbox.receive()
    assert (again.message_id, again.attempts) == (two.message_id, 2)


def test_an_inbox_may_take_some_modes_only(backend, clock, send):
    """The rest waits for another one."""
    for delivery in ("sequential", "urgent"):
        send(delivery, delivery=delivery)
    urgent = Inbox("boss", deliveries=("urgent",), backend=backend, clock=clock)
    assert [notice.text for notice in urgent.poll()] == ["urgent"]
    assert [notice.text for notice in urgent.peek()] == ["sequential"]


def test_an_inbox_runs_until_it_is_stopped(tmp_path):
    """In a thread of its own, on a store of files, with the real clock."""
    with closing(LocalBackend(str(tmp_path))) as backend:
        inbox = Inbox("boss", backend=backend)
        heard = threading.Event()

        @inbox.on_notice
        def hear(notice):
            heard.set()
            inbox.stop()

        thread = threading.Thread(target=inbox.run, args=(0.01,))
        thread.start()
        queue_message("boss", "hello", backend=backend)
        assert heard.wait(30)
        thread.join(30)
        assert not thread.is_alive()
        assert inbox.peek() == []


def test_a_store_that_refuses_is_tried_again(inbox, send, monkeypatch, caplog):
    """What waits arrives when the store is there again."""
    send("hello")
    receive, refusals = inbox.receive, iter([StateWriteError("journal", "disk full")])

    def refuse(*arguments):
        error = next(refusals, None)
        if error is not None:
            raise error
        return receive(*arguments)

    monkeypatch.setattr(inbox, "receive", refuse)
    heard = []

    @inbox.on_notice
    def hear(notice):
        heard.append(notice.text)
        inbox.stop()

    inbox.run(poll_interval_seconds=0.0)
    assert heard == ["hello"]
    assert "agent boss receives nothing for now" in caplog.text


def test_who_receives_must_be_known(backend, monkeypatch):
    """An id is needed, given or in the environment, and modes that there are."""
    monkeypatch.delenv("ULTRAMON_AGENT_ID", raising=False)
    with pytest.raises(ConfigurationError, match="agent_id"):
        Inbox(backend=backend)
    monkeypatch.setenv("ULTRAMON_AGENT_ID", "boss")
    assert Inbox(backend=backend).agent_id == "boss"
    with pytest.raises(InvalidAgentIdError):
        Inbox("../boss", backend=backend)
    for deliveries in ((), ("later",)):
        with pytest.raises(ConfigurationError, match="deliveries"):
            Inbox("boss", deliveries=deliveries, backend=backend)


def test_a_backend_without_a_queue_says_so():
    """Instead of receiving nothing for ever."""
    with pytest.raises(ConfigurationError, match="one that keeps a queue"):
        Inbox("boss", backend=object())
    with pytest.raises(ConfigurationError, match="one that keeps registrations"):
        ultramon.registrations(backend=object())
