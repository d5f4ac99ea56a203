"""When states are saved and hearts beat, and what happens where the store refuses."""

import gc
import logging
import os
import sqlite3
import subprocess
import sys

import pytest

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.journal import JOURNAL
from ultramon.backends.memory import MemoryBackend
from ultramon.errors import StateWriteError
from ultramon.monitor.background import SLICE, TOGETHER, BackgroundSaver
from ultramon.testing import FakeClock, fill
from ultramon.testing.clock import START

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def stored(store, agent_id="scout-1"):
    return store.load(agent_id).record


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def files(tmp_path):
    """A backend of files under tmp_path/state."""
    backend = LocalBackend(str(tmp_path / "state"))
    yield backend
    backend.close()


@pytest.fixture
def broken(tmp_path):
    """Put a file in the place of the state directory, and the directory back when called."""

    def mend():
        (tmp_path / "state").unlink()
        (tmp_path / "away").rename(tmp_path / "state")

    def wreck():
        (tmp_path / "state").rename(tmp_path / "away")
        (tmp_path / "state").write_text("in the way")
        return mend

    return wreck


def test_task_changes_are_saved_together(make, store, ultramon_clock):
    """All task changes of a tenth of a second are one write."""
    monitor = make("scout-1")
    before = stored(store).seq
    for number in range(50):
        with monitor.task(f"item {number}"):
            ultramon_clock.advance(0.1 / 64)
    assert stored(store).seq == before
    ultramon_clock.advance(0.1 / 4)
    record = stored(store)
    assert (record.seq, record.tasks_completed) == (before + 1, 50)


def test_content_is_saved_within_five_seconds(make, store, ultramon_clock):
    """Tracking does no I/O; the count is saved when the interval is over, once."""
    monitor = make("scout-1", **LIMIT)
    monitor.track_content("x" * 40)
    ultramon_clock.advance(0)
    for _ in range(100):
        monitor.track_content("x" * 40)
    ultramon_clock.advance(4.99)
    assert stored(store).cumulative_chars == 40
    before = stored(store).seq
    ultramon_clock.advance(0.01)
    record = stored(store)
    assert (record.cumulative_chars, record.seq) == (4_040, before + 1)


@pytest.mark.parametrize(
    "read",
    [lambda monitor: monitor.track_content("x" * 4_000), lambda monitor: fill(monitor, 0.01)],
    ids=["tracked", "reported"],
)
def test_the_first_reading_of_an_epoch_is_saved_in_the_background_at_once(
    make, store, ultramon_clock, read
):
    """Others need not wait for the save interval; the call itself does no I/O."""
    monitor = make("scout-1", **LIMIT)
    for _ in range(2):
        before = stored(store).seq
        read(monitor)
        assert stored(store).seq == before
        ultramon_clock.advance(0)
        record = stored(store)
        assert (record.seq, record.estimated_tokens) == (before + 1, 1_000)
        assert record.measured_at is not None
        monitor.record_compaction()


def test_the_save_interval_can_be_chosen(make, store, ultramon_clock):
    """A configured interval is used instead of five seconds."""
    monitor = make("scout-1", **LIMIT, save_interval_seconds=0.5)
    monitor.track_content("x" * 40)
    ultramon_clock.advance(0.5)
    assert stored(store).cumulative_chars == 40


@pytest.mark.parametrize(
    "act",
    [
        lambda monitor: fill(monitor, 0.7),
        lambda monitor: monitor.record_compaction(),
        lambda monitor: monitor.hand_off(),
        lambda monitor: monitor.update_heartbeat(),
        lambda monitor: monitor.stop(),
    ],
    ids=["level", "epoch", "handoff", "heartbeat", "stop"],
)
def test_what_matters_is_saved_at_once(make, store, act):
    """A level change, an epoch, a handoff, an explicit heartbeat and the end wait for nothing."""
    monitor = make("scout-1", **LIMIT)
    before = stored(store).seq
    act(monitor)
    assert stored(store).seq == before + 1


def test_the_heart_beats_every_fifteen_seconds(files, tmp_path, ultramon_monitor, ultramon_clock):
    """A heartbeat is the time of the heartbeat file, and writes no state."""
    monitor = ultramon_monitor("scout-1", backend=files)
    file = tmp_path / "state" / "subagents" / "scout-1.hb"
    beats, sequences = [], []
    for _ in range(4):
        beats.append(file.stat().st_mtime - START)
        sequences.append(stored(files).seq)
        ultramon_clock.advance(10)
    assert beats == [0, 0, 15, 30]
    assert sequences == [0, 0, 0, 1]
    assert monitor.get_state().active


@pytest.mark.parametrize("store", ["memory", "file"], indirect=True)
def test_plain_json_is_never_older_than_thirty_seconds(make, store, ultramon_clock):
    """A poller that reads only the state file sees lastHeartbeat move with nothing to save."""
    monitor = make("scout-1")
    for _ in range(20):
        ultramon_clock.advance(7)
        assert ultramon_clock.now() - stored(store).last_heartbeat <= 30
    assert stored(store).last_activity == START
    assert monitor.get_state().active


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_a_database_is_given_an_unchanged_state_every_ten_minutes(make, store, ultramon_clock):
    """Nobody polls plain JSON there; the heartbeat, a row of its own, continues as everywhere."""
    monitor = make("scout-1")
    replaced_at = []
    for _ in range(130):
        ultramon_clock.advance(10)
        if stored(store).seq > len(replaced_at):
            replaced_at.append(ultramon_clock.now() - START)
        assert ultramon_clock.now() - store.load("scout-1").heartbeat_at < 15
    assert replaced_at == [600, 1200]
    assert monitor.get_state().active


def test_due_work_is_done_in_order(ultramon_monitor, ultramon_backend, ultramon_clock):
    """Monitors with different intervals beat each at its own times."""
    slow = ultramon_monitor("slow", heartbeat_interval_seconds=20)
    fast = ultramon_monitor("fast", heartbeat_interval_seconds=7)
    ultramon_clock.advance(27)
    beats = {agent.agent_id: agent.heartbeat_at - START for agent in ultramon_backend.list_agents()}
    assert beats == {slow.agent_id: 20, fast.agent_id: 21}


def test_an_ended_agent_is_left_alone(make, store, ultramon_clock):
    """After the end nothing beats, saves, or waits to."""
    make("scout-1").stop()
    before = store.load("scout-1")
    ultramon_clock.advance(1000)
    after = store.load("scout-1")
    assert (after.heartbeat_at, after.record.seq) == (before.heartbeat_at, before.record.seq)
    assert ultramon_clock.saver.next_due() is None


def test_a_refused_heartbeat_ends_the_beating(make, store, ultramon_clock, caplog):
    """An owner that was displaced learns it from its next heartbeat and says it once."""
    former = make("scout-1", on_error="log")
    make("scout-1", takeover=True).stop()
    ultramon_clock.advance(100)
    (warning,) = warnings(caplog)
    assert "scout-1 was taken over by another process" in warning
    assert stored(store).outcome == "completed"
    assert former.get_state().active
    assert ultramon_clock.saver.next_due() is None


def test_a_deleted_record_of_a_living_agent_comes_back(files, ultramon_monitor, ultramon_clock):
    """An agent whose state file somebody deleted stores itself again at the next heartbeat."""
    monitor = ultramon_monitor("scout-1", backend=files, **LIMIT)
    fill(monitor, 0.72)
    files.directory.remove("scout-1")
    ultramon_clock.advance(15)
    assert stored(files).usage_ratio == 0.72
    assert monitor.get_state().active


def test_failed_saves_are_one_warning_and_are_retried(
    files, broken, ultramon_monitor, ultramon_clock, caplog
):
    """While the store refuses the agent runs on; afterwards everything is stored, events too."""
    monitor = ultramon_monitor("scout-1", backend=files, on_error="log", **LIMIT)
    mend = broken()
    assert fill(monitor, 0.72).changed
    monitor.complete_task("a")
    monitor.update_heartbeat()
    ultramon_clock.advance(50)
    (warning,) = warnings(caplog)
    assert warning.startswith("agent scout-1 is not saved, it runs on: ")
    ultramon_clock.advance(15)
    assert len(warnings(caplog)) == 2
    mend()
    ultramon_clock.advance(5)
    record = stored(files)
    assert (record.usage_ratio, record.tasks_completed) == (0.72, 1)
    assert [event["type"] for event in files.events().events] == [
        "agent_started",
        "context_threshold_reached",
    ]


def test_an_end_that_could_not_be_saved_is_saved_later(
    files, broken, ultramon_monitor, ultramon_clock
):
    """The last state is kept until it is stored, even when nobody holds the monitor any more."""
    monitor = ultramon_monitor("scout-1", backend=files, on_error="log")
    mend = broken()
    monitor.stop("failed")
    del monitor
    gc.collect()
    ultramon_clock.advance(60)
    mend()
    assert stored(files).active
    ultramon_clock.advance(5)
    assert (stored(files).active, stored(files).outcome) == (False, "failed")
    assert [event["type"] for event in files.events().events] == ["agent_started", "agent_stopped"]
    assert ultramon_clock.saver.next_due() is None


def test_events_that_wait_for_the_journal_are_flushed_after_the_end(
    files, tmp_path, ultramon_monitor, ultramon_clock
):
    """A busy journal delays events, never the state: they wait in it and follow later."""
    monitor = ultramon_monitor("scout-1", backend=files)
    other = sqlite3.connect(tmp_path / "state" / JOURNAL, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monitor.stop()
    ultramon_clock.advance(20)
    record = stored(files)
    assert record.outcome == "completed"
    assert [event["type"] for event in record.pending] == ["agent_stopped"]
    other.execute("ROLLBACK")
    other.close()
    ultramon_clock.advance(5)
    assert stored(files).pending is None
    assert [event["type"] for event in files.events().events] == ["agent_started", "agent_stopped"]
    assert ultramon_clock.saver.next_due() is None


def test_the_next_owner_stores_what_the_former_left_pending(
    files, tmp_path, ultramon_monitor, ultramon_clock
):
    """Events that a vanished owner could not store come before those of its successor."""
    former = ultramon_monitor("scout-1", backend=files, **LIMIT)
    other = sqlite3.connect(tmp_path / "state" / JOURNAL, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    fill(former, 0.72)
    other.execute("ROLLBACK")
    other.close()
    ultramon_monitor("scout-1", backend=files, takeover=True, **LIMIT)
    assert [(event["type"], event["generation"]) for event in files.events().events] == [
        ("agent_started", 1),
        ("context_threshold_reached", 1),
        ("agent_started", 2),
    ]
    assert stored(files).pending is None


def test_a_failed_save_can_raise(files, broken, ultramon_monitor, ultramon_clock):
    """With on_error="raise" the error comes out of the call, or of the next one after it."""
    monitor = ultramon_monitor("scout-1", backend=files, **LIMIT)
    mend = broken()
    with pytest.raises(StateWriteError, match=r"scout-1\.lock: cannot be locked"):
        monitor.update_heartbeat()
    monitor.track_content("x")
    ultramon_clock.advance(5)
    mend()
    with pytest.raises(StateWriteError):
        monitor.update_heartbeat()
    monitor.update_heartbeat()


def test_a_jump_of_the_wall_clock_delays_nothing(make, store, ultramon_clock):
    """Intervals are measured on the monotonic clock."""
    monitor = make("scout-1", **LIMIT)
    monitor.track_content("x" * 40)
    ultramon_clock.jump(-86_400)
    ultramon_clock.advance(5)
    assert stored(store).cumulative_chars == 40


def test_work_due_at_time_zero_is_done(store):
    """A delay that ends when the clock starts is no different from any other."""
    clock = FakeClock()
    monitor = create_context_monitor("scout-1", backend=store, clock=clock).start()
    clock.saver.schedule(monitor._writer, 0.0)
    clock.advance(0)
    assert stored(store).seq == 1


EXIT = """
from ultramon import create_context_monitor
monitor = create_context_monitor("scout-1").start()
monitor.track_content("x" * 4000)
monitor.plan(["a"])
"""


def test_the_end_of_a_process_stores_what_is_left(files):
    """A process that ends without a stop loses nothing that it tracked; the agent is not ended."""
    subprocess.run([sys.executable, "-c", EXIT], check=True, env=dict(os.environ))
    record = stored(files)
    assert (record.cumulative_chars, record.active) == (4_000, True)
    assert [task["name"] for task in record.tasks] == ["a"]


def test_the_background_thread_saves(files):
    """With the system's clock a thread of the process does the same work."""
    config = ContextConfig(on_error="raise", save_interval_seconds=0.001)
    with create_context_monitor("scout-1", config, backend=files) as monitor:
        fill(monitor, 0.72)
        assert stored(files).threshold_status == "warning"
    assert stored(files).outcome == "completed"


def test_the_next_due_time_is_that_of_the_earliest_job(make, ultramon_clock):
    """However jobs come, move and go, the saver wakes for the first one and for no stale one."""
    monitors = [
        make(f"scout-{number}", heartbeat_interval_seconds=5.0 + number % 7, **LIMIT)
        for number in range(20)
    ]
    saver = ultramon_clock.saver
    for step in range(200):
        monitor = monitors[step * 7 % len(monitors)]
        if step % 3 == 0:
            monitor.track_content("x" * 40)
        elif step % 11 == 0 and len(monitors) > 5:
            monitors.remove(monitor)
            monitor.stop("completed")
        ultramon_clock.advance(0.37)
        due = [min(job.beat_at, job.check_at, job.save_at) for job in saver._jobs.values()]
        assert saver.next_due() == min(due)
        assert min(due) > ultramon_clock.monotonic()


class TogetherBackend(MemoryBackend):
    """Stores several states in one call, like a database, and notes how many."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def record_together(self, saves):
        self.sizes.append(len(saves))
        for save in saves:
            self.record(save.record, save.events, durable=save.durable)
        return [None] * len(saves)


def test_saves_go_to_a_database_in_steps_of_a_bounded_size():
    """A writer waits for those of its step, never for all of a large process."""
    clock, backend = FakeClock(), TogetherBackend()
    monitors = [
        create_context_monitor(
            f"scout-{number}", ContextConfig(**LIMIT), backend=backend, clock=clock
        )
        for number in range(2 * TOGETHER + 3)
    ]
    for monitor in monitors:
        monitor.start()
        monitor.track_content("x" * 40)
    clock.advance(10)
    assert max(backend.sizes) == TOGETHER
    assert {stored(backend, monitor.agent_id).cumulative_chars for monitor in monitors} == {40}


def test_a_thread_does_its_work_in_slices():
    """With more writers due than a slice holds it says that there is more, and then does it."""
    clock = FakeClock()
    saver = BackgroundSaver(clock, threaded=True)
    backend = MemoryBackend()
    monitors = [
        create_context_monitor(f"scout-{number}", backend=backend, clock=clock)
        for number in range(SLICE + 1)
    ]
    saver._closing = True  # its thread ends at once: this test is the thread
    for monitor in monitors:
        saver.add(monitor._writer)
    clock.advance(5)
    assert saver.run_due()
    assert not saver.run_due()
    assert saver.next_due() > clock.monotonic()
