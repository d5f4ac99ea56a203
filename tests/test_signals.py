"""Signals: every receiver is called, none is dropped silently, a failing one stops no other."""

import asyncio
import gc
import logging

import pytest

from ultramon import signals


@pytest.fixture(autouse=True)
def nobody_stays_connected():
    """Handlers of one test are not called in the next one."""
    yield
    for handler, _, _ in list(signals._connected):
        signals.off(handler)


def emit(event="event", agent_id="scout-1"):
    """Tell about a threshold."""
    signals.emit(signals.context_threshold_reached, agent_id, event)


def test_every_friendly_name_leads_to_its_signal():
    """Each name tells exactly the handlers of that name."""
    heard = []
    for name in signals.FRIENDLY_NAMES:
        signals.on(name)(lambda event, name=name: heard.append((name, event)))
    for name, signal in signals.FRIENDLY_NAMES.items():
        signals.emit(signal, "scout-1", name)
    assert heard == [(name, name) for name in signals.FRIENDLY_NAMES]


def test_every_signal_has_a_friendly_name_and_says_what_it_carries():
    """What can be received raw can be received the friendly way, and is documented."""
    raw = {value for value in vars(signals).values() if type(value).__name__ == "NamedSignal"}
    assert raw == set(signals.FRIENDLY_NAMES.values())
    assert all("event: " in signal.__doc__ for signal in raw)


def test_lambdas_and_methods_of_temporaries_stay_connected():
    """Blinker keeps weak references and would drop both at the next collection."""
    heard = []

    class Listener:
        def listen(self, event):
            heard.append(("method", event))

    signals.on("threshold")(lambda event: heard.append(("lambda", event)))
    signals.on("threshold")(Listener().listen)
    gc.collect()
    emit("now")
    assert sorted(heard) == [("lambda", "now"), ("method", "now")]


def test_on_returns_the_handler_itself():
    """A decorated function stays callable under its name."""

    @signals.on("relaxed")
    def handler(event):
        return event

    assert handler("called") == "called"


def test_off_disconnects_from_everything():
    """From every name it was connected to, also as a method, and only that handler."""
    heard, others = [], []
    for name in ("threshold", "relaxed"):
        signals.on(name)(heard.append)
        signals.on(name)(others.append)
    signals.off(heard.append)
    signals.off(heard.append)
    signals.off(print)
    emit("one")
    signals.emit(signals.context_relaxed, "scout-1", "two")
    assert (heard, others) == ([], ["one", "two"])


def test_a_handler_of_one_agent_hears_only_of_it():
    """The sender is the agent id, compared as text."""
    heard = []
    signals.on("threshold", agent_id="scout-1")(heard.append)
    emit("mine", "-".join(["scout", "1"]))
    emit("another's", "scout-2")
    assert heard == ["mine"]


def test_an_unknown_name_is_refused_with_the_known_ones():
    """A misspelt name would be a handler that is never called."""
    with pytest.raises(ValueError, match="no event 'treshold': choose one of threshold, relaxed"):
        signals.on("treshold")


def test_a_receiver_that_raises_is_logged_by_name_and_stops_nobody(caplog):
    """All others are called, and the emitter continues."""
    heard = []

    def clumsy_receiver(event):
        raise RuntimeError(f"boom {event}")

    signals.on("threshold")(heard.append)
    signals.on("threshold")(clumsy_receiver)
    signals.on("threshold")(heard.append)
    with caplog.at_level(logging.ERROR, "ultramon.monitor"):
        emit("now")
    assert heard == ["now", "now"]
    (logged,) = caplog.records
    assert "clumsy_receiver raised" in logged.getMessage()
    assert logged.getMessage().startswith("signal receiver test_signals.")
    assert "boom now" in caplog.text


def test_a_raw_receiver_that_raises_stops_nobody_either(caplog):
    """Receivers connected to blinker directly are treated alike."""
    heard = []

    def raw(sender, event):
        raise KeyError(sender)

    def wrong_signature():
        heard.append("never")

    signals.context_threshold_reached.connect(raw)
    signals.context_threshold_reached.connect(wrong_signature)
    signals.on("threshold")(heard.append)
    emit("now")
    signals.context_threshold_reached.disconnect(raw)
    signals.context_threshold_reached.disconnect(wrong_signature)
    assert heard == ["now"]
    assert len(caplog.records) == 2


def test_a_raw_receiver_gets_the_sender_as_text():
    """As blinker has it: sender first, the fact as the keyword `event`."""
    heard = []

    def raw(sender, event):
        heard.append((sender, event))

    signals.context_threshold_reached.connect(raw, sender="scout-1")
    emit("now")
    signals.context_threshold_reached.disconnect(raw)
    assert heard == [("scout-1", "now")]


def test_an_async_handler_runs_to_its_end_without_a_loop():
    """In a plain thread the emitter waits for it."""
    heard = []

    @signals.on("threshold")
    async def handler(event):
        await asyncio.sleep(0)
        heard.append(event)

    emit("now")
    assert heard == ["now"]


def test_an_async_handler_becomes_a_task_of_the_running_loop():
    """In a loop the emitter does not wait, and the task is not collected before its end."""
    heard = []

    @signals.on("threshold")
    async def handler(event):
        await asyncio.sleep(0)
        heard.append(event)

    async def main():
        emit("now")
        assert heard == []
        gc.collect()
        await asyncio.gather(*signals._running)
        assert heard == ["now"]

    asyncio.run(main())
    assert signals._running == set()


@pytest.mark.parametrize("in_loop", [False, True])
def test_an_async_handler_that_raises_is_logged_by_name(caplog, in_loop):
    """Now or later, its exception ends in the log and nowhere else."""

    @signals.on("threshold")
    async def clumsy_coroutine(event):
        raise RuntimeError(f"boom {event}")

    async def main():
        emit("now")
        await asyncio.gather(*signals._running)

    if in_loop:
        asyncio.run(main())
    else:
        emit("now")
    (logged,) = caplog.records
    assert "clumsy_coroutine raised" in logged.getMessage()
    assert "boom now" in caplog.text


def test_an_object_with_an_async_call_is_a_handler():
    """What counts is what it returns, not what it looks like."""
    heard = []

    class Handler:
        async def __call__(self, event):
            heard.append(event)

    signals.on("threshold")(Handler())
    emit("now")
    assert heard == ["now"]


def test_a_handler_may_disconnect_itself():
    """Changing the receivers while they are called hurts none."""
    heard = []

    def once(event):
        heard.append(("once", event))
        signals.off(once)

    signals.on("threshold")(once)
    signals.on("threshold")(lambda event: heard.append(("always", event)))
    emit(1)
    emit(2)
    assert sorted(heard) == [("always", 1), ("always", 2), ("once", 1)]
