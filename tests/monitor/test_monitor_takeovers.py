"""Whose agent it is: takeovers, restarts, forks, threads, and a store that refuses."""

import gc
import logging
import os
import subprocess
import sys
import weakref
from threading import Thread

import pytest

from ultramon import AgentAlreadyRunningError, ContextConfig, FencedError, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateWriteError
from ultramon.testing import FakeClock, fill

LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}
TOO_LONG = "x" * (1 << 20)
"""A model name that makes a state larger than a reader accepts."""


def kinds(store, *members):
    """The types of all stored events, with some of their members."""
    events = store.events().events
    if not members:
        return [event["type"] for event in events]
    return [(event["type"], *(event[member] for member in members)) for event in events]


def stored(store, agent_id="scout-1"):
    return store.load(agent_id).record


def test_a_running_id_is_refused(make, ultramon_signals, store):
    """The error of a second owner of a living agent names the first; nothing of it is stored."""
    make("scout-1")
    del ultramon_signals[:]
    with pytest.raises(AgentAlreadyRunningError, match=f"process {os.getpid()} on "):
        make("scout-1")
    assert ultramon_signals == []
    assert kinds(store) == ["agent_started"]


def test_a_refused_start_can_be_tried_again(make, store, ultramon_clock):
    """A monitor whose start was refused starts later, with one event."""
    first = make("scout-1")
    second = create_context_monitor("scout-1", backend=store, clock=ultramon_clock)
    for _ in range(2):
        with pytest.raises(AgentAlreadyRunningError):
            second.start()
    first.stop()
    second.start()
    assert kinds(store, "generation", "n") == [
        ("agent_started", 1, 0),
        ("agent_stopped", 1, 0),
        ("agent_started", 2, 0),
    ]


def test_a_takeover_fences_the_former_owner(make, store, ultramon_clock, ultramon_signals):
    """After a takeover the former owner's calls work; nothing of them is stored or emitted."""
    former = make("scout-1", **LIMIT)
    make("scout-1", **LIMIT, takeover=True)
    with pytest.raises(FencedError, match="generation 1 was taken over by generation 2"):
        former.update_heartbeat()
    del ultramon_signals[:]
    before = stored(store).to_json()
    assert fill(former, 0.9).level == "critical"
    former.stop()
    assert stored(store).to_json() == before
    assert ultramon_signals == []
    assert kinds(store) == ["agent_started", "agent_started"]


def test_a_fenced_owner_is_only_warned(make, caplog):
    """By default losing the agent raises nothing into the former owner's turn."""
    former = make("scout-1", **LIMIT, on_error="log")
    make("scout-1", **LIMIT, takeover=True)
    assert fill(former, 0.9).level == "critical"
    former.update_heartbeat()
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert [record.name for record in warnings] == ["ultramon.monitor"]
    assert "scout-1 was taken over by another process" in caplog.text


def test_a_fenced_owner_says_so_and_asks_to_return(make, store, ultramon_clock):
    """It learns it from its next heartbeat; the action names the new owner, at any level."""
    former = make("scout-1", **LIMIT, on_error="log")
    assert (former.is_fenced, former.get_threshold_action().should_return) == (False, False)
    make("scout-1", **LIMIT, takeover=True).stop()
    ultramon_clock.advance(15)
    assert former.is_fenced
    for action in (former.get_threshold_action(), former.track_content("x"), fill(former, 0.72)):
        assert action.should_return
        assert action.message == (
            "Agent belongs to another process (generation 2) - nothing more is stored here, "
            "initiating return"
        )
    assert former.get_state().action == "force_return"
    assert (former.hand_off().reason, former.hand_off().stored) == ("cancelled", False)
    assert (former.stop(), stored(store).generation) == (False, 2)


def test_a_restart_goes_on_where_the_vanished_owner_was(make, store, ultramon_clock):
    """Same epoch, level and plan, one generation on; no event is emitted twice."""
    former = make("scout-1", **LIMIT)
    former.plan(["a", "b", "c"])
    former.complete_task("a", result="out/a.md")
    former.clear()
    fill(former, 0.72)
    block = former.task("b")
    block.__enter__()
    ultramon_clock.advance(100)
    monitor = make("scout-1", **LIMIT, takeover=True)
    state = monitor.get_state()
    assert (state.generation, state.epoch, state.threshold_status) == (2, 2, "warning")
    assert (state.usage_ratio, state.tokens_source) == (0.72, "reported")
    assert state.started_at == former.get_state().started_at
    assert [(task.name, task.status, task.result) for task in state.tasks] == [
        ("a", "done", "out/a.md"),
        ("b", "interrupted", None),
        ("c", "pending", None),
    ]
    assert fill(monitor, 0.75).changed is False
    fill(monitor, 0.9)
    assert kinds(store, "generation", "epoch") == [
        ("agent_started", 1, 1),
        ("context_epoch_started", 1, 2),
        ("context_threshold_reached", 1, 2),
        ("agent_started", 2, 2),
        ("context_threshold_reached", 2, 2),
    ]


def test_a_restart_remembers_the_observed_window(make, store, ultramon_clock):
    """What the provider said about the window holds after a restart: no false alarm."""
    former = make("scout-1"), make("scout-2")
    former[0].report_usage(input_tokens=250_000, context_window_tokens=1_000_000)
    former[1].report_usage(input_tokens=250_000)
    ultramon_clock.advance(5)
    first, second = (make(agent_id, takeover=True) for agent_id in ("scout-1", "scout-2"))
    assert first.track_content("x").level == "normal"
    assert second.track_content("x").level == "unknown"
    assert (first.get_state().context_limit, first.get_state().limit_suspect) == (1_000_000, False)
    assert (second.get_state().context_limit, second.get_state().limit_suspect) == (None, True)
    assert "context_threshold_reached" not in kinds(store)


def test_an_ended_agent_starts_a_new_window(make, store):
    """An agent that ended and starts again has another generation and another epoch."""
    with make("scout-1", **LIMIT) as former:
        fill(former, 0.9)
        former.hand_off(notes="for later")
    monitor = make("scout-1", **LIMIT)
    state = monitor.get_state()
    assert (state.generation, state.epoch, state.threshold_status) == (2, 2, None)
    assert (state.outcome, state.tasks, state.handoff["notes"]) == (None, None, "for later")
    assert fill(monitor, 0.9).changed is True
    assert kinds(store, "generation", "epoch")[-2:] == [
        ("agent_started", 2, 2),
        ("context_threshold_reached", 2, 2),
    ]


def test_every_write_has_a_higher_sequence(make, store, ultramon_clock):
    """A reader can tell the newer of two states, across owners too."""
    seen = []
    for _ in range(3):
        monitor = make("scout-1", **LIMIT)
        seen.append(stored(store).seq)
        monitor.update_heartbeat()
        seen.append(stored(store).seq)
        monitor.stop()
        seen.append(stored(store).seq)
    assert seen == sorted(set(seen))


def test_unknown_fields_survive_a_new_owner(make, store):
    """What a newer or foreign writer added to a state is still there after a restart."""
    make("scout-1").stop()
    record = stored(store)
    record.extra, record.seq = {"fromElsewhere": [1]}, record.seq + 1
    store.record(record, [], durable=True)
    make("scout-1").update_heartbeat()
    assert stored(store).extra == {"fromElsewhere": [1]}


def test_reading_is_pure(tmp_path, ultramon_monitor, ultramon_clock):
    """No read writes anything: neither the state file nor the heartbeat moves."""
    monitor = ultramon_monitor("scout-1", backend=LocalBackend(str(tmp_path / "state")), **LIMIT)
    fill(monitor, 0.5)
    ultramon_clock.advance(5)
    folder = tmp_path / "state" / "subagents"

    def seen():
        return {
            path.name: (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino)
            for path in folder.iterdir()
        }

    before = seen()
    ultramon_clock.jump(1000)
    monitor.get_state()
    monitor.explain()
    monitor.get_threshold_action()
    monitor.pending()
    monitor.fits(10)
    assert seen() == before


def test_eight_threads_lose_nothing(make, store, ultramon_clock):
    """Content, tasks and reports from many threads are all counted, each crossing once."""
    monitor = make("scout-1", **LIMIT)
    monitor.plan(f"{worker}/{number}" for worker in range(8) for number in range(25))

    def work(worker):
        for number in range(25):
            with monitor.task(f"{worker}/{number}"):
                for _ in range(36):
                    monitor.track_content("x" * 40, source=f"tool:{worker}")

    threads = [Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = monitor.get_state()
    assert (state.estimated_tokens, state.tasks_completed) == (72_000, 200)
    assert set(state.by_source.values()) == {9_000}
    assert monitor.pending() == []
    assert kinds(store, "n") == [("agent_started", 0), ("context_threshold_reached", 0)]


def test_a_store_that_refuses_a_start_can_raise(tmp_path, ultramon_monitor):
    """With on_error="raise" the error of the store comes out of start, and nothing continues."""
    (tmp_path / "store").write_text("a file where the directory should be")
    clock = FakeClock()
    monitor = create_context_monitor(
        "scout-1",
        ContextConfig(on_error="raise"),
        backend=LocalBackend(str(tmp_path / "store")),
        clock=clock,
    )
    with pytest.raises(OSError, match="not a directory"):
        monitor.start()
    (tmp_path / "store").unlink()
    clock.advance(100)
    assert not (tmp_path / "store").exists()
    monitor.start()
    assert stored(LocalBackend(str(tmp_path / "store"))).active


class LostAnswers:
    """A store that refuses the next starts: before they are stored, or only in its answer."""

    def __init__(self, store, *refusals):
        self._store = store
        self._refusals = list(refusals)

    def __getattr__(self, name):
        return getattr(self._store, name)

    def start_agent(self, agent_id, build, **given):
        refusal = self._refusals.pop(0) if self._refusals else None
        if refusal == "before":

            def refused(stored, generation):
                build(stored, generation)
                raise StateWriteError("store", "refused before it was stored")

            self._store.start_agent(agent_id, refused, **given)
        answer = self._store.start_agent(agent_id, build, **given)
        if refusal == "after":
            raise StateWriteError("store", "is written, durability unknown")
        return answer


def test_a_start_refused_after_it_was_stored_goes_on(store, ultramon_clock):
    """The retry knows its own state: same generation, and everything is stored once."""
    near = {"backend": LostAnswers(store, "after"), "clock": ultramon_clock}
    monitor = create_context_monitor("scout-1", ContextConfig(**LIMIT), **near).start()
    assert stored(store).active
    ultramon_clock.advance(5)
    fill(monitor, 0.9)
    monitor.hand_off(notes="what was learned")
    monitor.stop()
    record = stored(store)
    assert (record.generation, record.epoch, record.active) == (1, 1, False)
    assert record.handoff["notes"] == "what was learned"
    assert kinds(store, "generation") == [
        ("agent_started", 1),
        ("context_threshold_reached", 1),
        ("handoff_ready", 1),
        ("agent_stopped", 1),
    ]


def test_a_refused_start_may_be_repeated_by_its_caller(store, ultramon_clock):
    """Where refusals are raised, start of the same monitor is called again and succeeds."""
    near = {"backend": LostAnswers(store, "after"), "clock": ultramon_clock}
    monitor = create_context_monitor("scout-1", ContextConfig(on_error="raise"), **near)
    with pytest.raises(StateWriteError, match="durability unknown"):
        monitor.start()
    monitor.start().stop()
    assert kinds(store, "generation") == [("agent_started", 1), ("agent_stopped", 1)]


def test_a_refused_takeover_is_not_repeated(make, store, ultramon_clock):
    """An owner that took an agent over does not take it over from itself."""
    make("scout-1")
    near = {"backend": LostAnswers(store, "after"), "clock": ultramon_clock}
    monitor = create_context_monitor("scout-1", takeover=True, **near).start()
    ultramon_clock.advance(5)
    assert stored(store).generation == 2
    monitor.stop()
    assert kinds(store, "generation")[1:] == [("agent_started", 2), ("agent_stopped", 2)]


@pytest.mark.parametrize("refusals", [["before", "before"], ["before", "after"]])
def test_a_refused_restart_continues_the_window_once(make, store, ultramon_clock, refusals):
    """However often the start is refused, the epoch of the vanished owner continues."""
    fill(make("scout-1", **LIMIT), 0.72)
    ultramon_clock.advance(100)
    near = {"backend": LostAnswers(store, *refusals), "clock": ultramon_clock, "takeover": True}
    monitor = create_context_monitor("scout-1", ContextConfig(**LIMIT), **near).start()
    ultramon_clock.advance(10)
    record = stored(store)
    assert (record.generation, record.epoch, record.threshold_status) == (2, 1, "warning")
    assert kinds(store, "generation", "epoch")[2:] == [("agent_started", 2, 1)]
    monitor.stop()


@pytest.mark.parametrize("refusal", ["before", "after"])
def test_two_owners_in_one_process_exclude_each_other_after_a_refusal(
    make, store, ultramon_clock, refusal
):
    """Only the monitor whose start was stored continues; pid and session tell nothing."""
    near = {"clock": ultramon_clock, "session_id": "one conversation"}
    first = create_context_monitor("scout-1", backend=LostAnswers(store, refusal), **near).start()
    if refusal == "before":
        second = make("scout-1", **near)
    else:
        with pytest.raises(AgentAlreadyRunningError):
            make("scout-1", **near)
    ultramon_clock.advance(5)
    assert first.is_fenced is (refusal == "before")
    owner, other = (first, None) if refusal == "after" else (second, first)
    owner.set_current_task("mine")
    if other is not None:
        other.set_current_task("not mine")
    ultramon_clock.advance(5)
    assert (stored(store).generation, stored(store).current_task) == (1, "mine")
    owner.stop()
    assert kinds(store) == ["agent_started", "agent_stopped"]


FORK = """
import os, sys
from ultramon import ContextConfig, create_context_monitor
monitor = create_context_monitor("scout-1", ContextConfig(on_error="raise")).start()
before = open(sys.argv[1], "rb").read()
child = os.fork()
if not child:
    monitor.report_usage(input_tokens=190_000)
    monitor.update_heartbeat()
    monitor.stop("failed")
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert open(sys.argv[1], "rb").read() == before, "the child wrote"
monitor.report_usage(input_tokens=190_000)
assert monitor.get_state().active
monitor.stop()
"""


def test_a_forked_child_writes_nothing(tmp_path):
    """A forked copy may still call; the agent stays with the parent, which is not disturbed."""
    state = tmp_path / "state" / "subagents" / "scout-1.json"
    # Python 3.12 and newer warn of every fork beside threads: this one is the point of the test.
    quiet = (sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK)
    done = subprocess.run([*quiet, str(state)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        0,
        "agent scout-1 belongs to the parent process; what this forked copy tracks is not "
        "stored, create a monitor of its own here\n",
    )
    store = LocalBackend(str(tmp_path / "state"))
    assert stored(store).outcome == "completed"
    assert kinds(store) == ["agent_started", "context_threshold_reached", "agent_stopped"]


def test_a_dropped_monitor_is_collected(make, ultramon_clock, store):
    """A monitor that nobody holds is freed without a stop, and its agent beats no more."""
    monitor = weakref.ref(make("scout-1"))
    ultramon_clock.advance(15)
    gc.collect()
    assert monitor() is None
    beat = store.load("scout-1").heartbeat_at
    ultramon_clock.advance(100)
    assert store.load("scout-1").heartbeat_at == beat
    assert ultramon_clock.saver.next_due() is None


def test_a_late_registration_keeps_what_was_tracked(tmp_path, ultramon_clock, caplog):
    """An agent that could not be stored at first comes after the stored one, with its own count."""
    store = LocalBackend(str(tmp_path / "state"))
    config = ContextConfig(**LIMIT)
    near = {"backend": store, "clock": ultramon_clock}
    with create_context_monitor("scout-1", config, **near) as former:
        fill(former, 0.5)
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")
    monitor = create_context_monitor("scout-1", config, **near).start()
    assert fill(monitor, 0.72).changed
    (tmp_path / "state").unlink()
    (tmp_path / "away").rename(tmp_path / "state")
    ultramon_clock.advance(5)
    record = stored(store)
    assert (record.generation, record.epoch, record.usage_ratio) == (2, 2, 0.72)
    assert kinds(store, "generation", "epoch")[2:] == [
        ("agent_started", 2, 2),
        ("context_threshold_reached", 2, 2),
    ]
    assert caplog.text.count("WARNING") == 1
    monitor.track_content("xxxx")
    ultramon_clock.advance(5)
    assert stored(store).cumulative_chars == 4


def test_a_start_over_a_full_disk_is_not_fenced_later(tmp_path, ultramon_clock):
    """A first state that could not be replaced is tried again under the right generation."""
    store = LocalBackend(str(tmp_path / "state"))
    near = {"backend": store, "clock": ultramon_clock}
    create_context_monitor("scout-1", **near).start().stop()
    monitor = create_context_monitor("scout-1", ContextConfig(model=TOO_LONG), **near).start()
    assert stored(store).generation == 1
    monitor.set_model("gpt-4.1")
    ultramon_clock.advance(5)
    assert (stored(store).generation, stored(store).model) == (2, "gpt-4.1")
    assert kinds(store)[2:] == ["agent_started"]


def test_a_state_too_long_to_be_read_back_is_not_written(ultramon_monitor, tmp_path):
    """What a reader would refuse is refused at the start, with the limit in the message."""
    store = LocalBackend(str(tmp_path / "state"))
    with pytest.raises(StateWriteError, match="at most 1,048,576 are read back"):
        ultramon_monitor("scout-1", backend=store, model=TOO_LONG)
    assert store.list_agents() == []
