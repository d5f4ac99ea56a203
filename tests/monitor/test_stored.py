"""What was stored when a call returns or a handler runs, with stores that are slow or refuse."""

import asyncio
import select
import threading
import time

import pytest
from helpers.fault_writer import AGENT, finish, run_writer
from helpers.requirements import require_tool

from ultramon import ContextConfig, create_context_monitor, signals
from ultramon.backends.local.backend import LocalBackend
from ultramon.testing import fill

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}
IMPATIENT = {**LIMIT, "store_timeout_seconds": 0.01, "save_interval_seconds": 0.01}
PATIENCE_SECONDS = 60.0


class SlowStore(LocalBackend):
    """A store of files that takes states only while its gate is open."""

    def __init__(self, directory):
        super().__init__(directory)
        self.gate = threading.Event()
        self.gate.set()

    def start_agent(self, *arguments, **named):
        self.gate.wait()
        return super().start_agent(*arguments, **named)

    def record(self, *arguments, **named):
        self.gate.wait()
        return super().record(*arguments, **named)


@pytest.fixture
def slow(tmp_path):
    store = SlowStore(str(tmp_path / "state"))
    yield store
    store.gate.set()
    store.close()


@pytest.fixture
def begin(slow):
    """A factory of monitors on the system's clock, ended after the test."""
    monitors = []

    def make(**fields):
        monitors.append(create_context_monitor("scout-1", ContextConfig(**fields), backend=slow))
        return monitors[-1]

    yield make
    slow.gate.set()
    for monitor in monitors:
        if monitor.is_active:
            monitor.stop()


def stored(store):
    return store.load("scout-1").record


def kinds(store):
    return [event["type"] for event in store.events().events]


def wait_until(condition):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        select.select([], [], [], 0.01)


def test_a_handler_runs_before_a_slow_store_has_the_crossing(begin, slow):
    """The agent waits 50 ms, then its thread runs the handler, which learns that it is early."""
    seen = []

    def receive(_sender, event):
        seen.append((event.stored, stored(slow).threshold_status, threading.get_ident()))

    monitor = begin(**LIMIT).start()
    slow.gate.clear()
    with signals.context_threshold_reached.connected_to(receive):
        assert fill(monitor, 0.72).level == "warning"
    assert seen == [(False, None, threading.get_ident())]
    assert not monitor.is_stored
    slow.gate.set()
    wait_until(lambda: monitor.is_stored)
    assert stored(slow).threshold_status == "warning"
    assert kinds(slow) == ["agent_started", "context_threshold_reached"]


def test_an_event_says_that_it_is_stored_in_this_process_only(make, store, ultramon_signals):
    """Handlers read it; neither the stored event nor its JSON has it."""
    with make("scout-1", **LIMIT) as monitor:
        fill(monitor, 0.72)
    assert [event.stored for _, event in ultramon_signals] == [True, True, True]
    assert all("stored" not in event.model_dump() for _, event in ultramon_signals)
    assert all("stored" not in event for event in store.events().events)


def test_a_start_says_whether_it_is_stored(begin, slow):
    """It returns when its time is over; the agent works, and is stored later, once."""
    slow.gate.clear()
    monitor = begin(**IMPATIENT).start()
    assert (monitor.is_active, monitor.is_stored) == (True, False)
    fill(monitor, 0.72)
    slow.gate.set()
    wait_until(lambda: monitor.is_stored)
    assert kinds(slow) == ["agent_started", "context_threshold_reached"]
    assert stored(slow).generation == 1


def test_a_slow_start_of_a_living_agent_is_fenced_later(begin, slow):
    """That the id is taken comes too late to be raised; the agent that had it is not disturbed."""
    owner = begin(**LIMIT).start()
    slow.gate.clear()
    monitor = begin(**IMPATIENT).start()
    slow.gate.set()
    wait_until(lambda: monitor.is_fenced)
    assert "nothing more is stored here" in monitor.get_threshold_action().message
    assert monitor.stop() is False
    owner.update_heartbeat()
    assert (stored(slow).active, stored(slow).generation) == (True, 1)


def test_a_handoff_says_whether_it_is_stored(begin, slow):
    """The record of one that is not has stored=False; it is stored later all the same."""
    monitor = begin(**IMPATIENT).start()
    wait_until(lambda: monitor.is_stored)
    slow.gate.clear()
    record = monitor.hand_off(notes="what was learned")
    assert (record.stored, "stored" in record.model_dump()) == (False, False)
    slow.gate.set()
    wait_until(lambda: monitor.is_stored)
    assert stored(slow).handoff["notes"] == "what was learned"
    assert "stored" not in stored(slow).handoff


def test_an_end_says_whether_it_is_stored(begin, slow):
    """A second stop says what became of the first."""
    monitor = begin(**IMPATIENT).start()
    wait_until(lambda: monitor.is_stored)
    slow.gate.clear()
    assert monitor.stop("failed") is False
    assert monitor.is_stored is False
    slow.gate.set()
    wait_until(monitor.stop)
    assert stored(slow).outcome == "failed"


def test_a_heartbeat_says_whether_it_is_stored(begin, slow):
    """An explicit heartbeat waits 50 ms like everything else within a turn."""
    monitor = begin(**LIMIT).start()
    slow.gate.clear()
    assert monitor.update_heartbeat() is False
    slow.gate.set()
    wait_until(monitor.update_heartbeat)


def test_a_store_that_takes_everything_is_said_to_have_it(make):
    """Start, heartbeat, handoff and end are stored when their calls return."""
    monitor = make("scout-1", **LIMIT)
    assert monitor.is_stored
    monitor.set_current_task("a")
    assert not monitor.is_stored
    assert monitor.update_heartbeat() is True
    assert monitor.is_stored
    assert monitor.hand_off().stored
    assert monitor.stop() is True
    assert (monitor.stop(), monitor.is_stored) == (True, True)


def test_a_store_that_refuses_is_an_answer(tmp_path, ultramon_monitor):
    """Nothing waits for a disk that has said no."""
    store = LocalBackend(str(tmp_path / "state"))
    near = {"backend": store, "on_error": "log", "store_timeout_seconds": 3_600}
    monitor = ultramon_monitor("scout-1", **near)
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")
    assert monitor.update_heartbeat() is False
    assert monitor.hand_off().stored is False
    assert monitor.stop() is False
    assert ultramon_monitor("scout-2", **near).is_stored is False


def test_disabled_stores_nothing_and_says_so(monkeypatch):
    """With ULTRAMON_DISABLED no answer claims that something is stored."""
    monkeypatch.setenv("ULTRAMON_DISABLED", "1")
    with create_context_monitor("scout-1") as monitor:
        assert (monitor.is_stored, monitor.update_heartbeat()) == (False, False)
        assert monitor.hand_off().stored is False
    assert monitor.stop() is False


def test_the_async_twins_leave_the_loop_free(begin, slow):
    """Start, handoff and end wait for a slow store in a thread while the loop opens its gate."""

    async def after_the_loop_ran(waiting):
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(0)
        assert not task.done()
        slow.gate.set()
        answer = await task
        slow.gate.clear()
        return answer

    async def agent():
        slow.gate.clear()
        monitor = begin(**LIMIT, store_timeout_seconds=PATIENCE_SECONDS)
        assert await after_the_loop_ran(monitor.start_async()) is monitor
        assert monitor.is_stored
        record = await after_the_loop_ran(monitor.hand_off_async(notes="what was learned"))
        assert (record.stored, record.notes) == (True, "what was learned")
        assert await after_the_loop_ran(monitor.stop_async("returned")) is True

    asyncio.run(agent())
    assert stored(slow).outcome == "returned"


def test_a_handoff_on_a_slow_disk_survives_the_end_of_its_process(tmp_path):
    """With 150 ms for each sync the handler knows that it is early, and hand_off waits."""
    delay = ["-e", "inject=fsync,fdatasync:delay_enter=150000"]
    trace = [require_tool("strace"), "-f", "-qq", "--seccomp-bpf", "-e", "signal=none"]
    trace += ["-o", tmp_path / "trace", "-e", "trace=fsync,fdatasync", *delay]
    writer = run_writer(tmp_path / "state", "hand_off_and_vanish", before=trace)
    said = finish(writer)
    assert (tmp_path / "trace").read_text().count("(DELAYED)") > 4
    assert [step for step, *_ in said] == ["start", "crossing", "hand_off"]
    assert (said[0][1], said[2][1]) == (True, True)
    assert said[1][1:] in ([False, None], [True, "critical"])
    store = LocalBackend(str(tmp_path / "state"))
    record = store.load(AGENT).record
    store.close()
    assert (record.active, record.threshold_status) == (True, "critical")
    assert record.handoff["notes"] == "what was learned"
