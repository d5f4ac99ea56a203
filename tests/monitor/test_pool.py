"""`MonitorPool`: one monitor per conversation, in a process that holds many."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon import AgentAlreadyRunningError, ConfigurationError, ContextConfig, MonitorPool
from ultramon.errors import LifecycleError
from ultramon.monitor.pool import _agent_id_of
from ultramon.system.ids import check_agent_id


@pytest.fixture
def pool(store, ultramon_clock):
    """A pool on each kind of backend, on a clock that only the test moves."""
    with MonitorPool(
        ContextConfig(on_error="raise"), run="chat", backend=store, clock=ultramon_clock
    ) as made:
        yield made


def stored(store, agent_id):
    return store.load(agent_id).record


def test_a_conversation_has_one_monitor_made_on_first_use(pool, store):
    """Asking again gives the same started monitor, in the run and with the config of the pool."""
    first = pool.get("alice")
    assert pool.get("alice") is first
    assert pool.get("bob") is not first
    assert len(pool) == 2
    state = stored(store, "alice")
    assert (state.run, state.active, state.label) == ("chat", True, "alice")


def test_any_text_is_a_conversation_id(pool, store):
    """A text that cannot be an agent id is hashed, and kept as the label."""
    monitor = pool.get("chat/42 with Zoë")
    assert monitor.agent_id.startswith("conv-")
    assert len(monitor.agent_id) == len("conv-") + 32
    assert stored(store, monitor.agent_id).label == "chat/42 with Zoë"
    assert pool.get("chat/42 with Zoë") is monitor
    assert pool.get("") is not monitor


def test_a_very_long_conversation_id_is_cut_in_the_label_only(pool, store):
    """A state stays readable, and two long ids that begin alike stay two."""
    one, two = pool.get("x" * 5000), pool.get("x" * 5001)
    assert one.agent_id != two.agent_id
    assert stored(store, one.agent_id).label == "x" * 200


@given(st.text())
def test_every_text_gives_a_valid_agent_id_always_the_same(text):
    """Half characters and control characters included; a valid id stays as it is."""
    agent_id = _agent_id_of(text)
    assert check_agent_id(agent_id) == agent_id == _agent_id_of(text)
    assert agent_id == text or agent_id.startswith("conv-")


def test_half_a_character_in_a_conversation_id_does_no_harm(pool):
    """Text from elsewhere may hold one; it can be asked for, rested and closed."""
    monitor = pool.get("\ud800")
    pool.rest("\ud800")
    pool.close("\ud800")
    assert monitor.get_state().outcome == "completed"


def test_a_resting_conversation_waits_until_it_is_used_again(pool):
    """Handed back to its user it is not stale; asking for it still works."""
    monitor = pool.get("alice")
    pool.rest("alice")
    assert monitor.get_state().phase == "waiting"
    assert pool.get("alice") is monitor
    assert monitor.get_state().phase == "working"


def test_asking_again_does_not_hide_that_the_agent_waits_by_its_own_word(pool):
    """Only what the pool laid to rest does it wake."""
    monitor = pool.get("alice")
    monitor.waiting()
    pool.get("alice")
    assert monitor.get_state().phase == "waiting"


def test_an_idle_conversation_is_closed_and_begins_a_new_life_when_used_again(
    pool, store, ultramon_clock
):
    """The next use is a new generation and epoch of the same agent, with an empty plan."""
    former = pool.get("alice")
    former.plan(["a"])
    ultramon_clock.advance(600)
    assert pool.close_idle() == ["alice"]
    assert len(pool) == 0
    assert (stored(store, "alice").active, stored(store, "alice").outcome) == (False, "completed")

    again = pool.get("alice")
    assert again is not former
    state = again.get_state()
    assert (state.generation, state.epoch, state.tasks) == (2, 2, None)
    with pytest.raises(LifecycleError):
        former.track_content("late")


def test_a_conversation_is_idle_only_when_nothing_happens_in_it(pool, ultramon_clock):
    """Neither one that was asked for, nor one whose monitor counts, nor one in a task, is idle."""
    asked, busy, in_task = pool.get("asked"), pool.get("busy"), pool.get("in-task")
    in_task.set_current_task("a long one")
    pool.get("idle")
    ultramon_clock.advance(400)
    pool.get("asked")
    busy.track_content("text")
    ultramon_clock.advance(200)
    assert pool.close_idle() == ["idle"]
    assert all(monitor.get_state().active for monitor in (asked, busy, in_task))


def test_asking_for_one_conversation_closes_the_idle_ones_once_a_minute(store, ultramon_clock):
    """`get` sweeps for idle conversations by itself, at most once a minute."""
    with MonitorPool(backend=store, clock=ultramon_clock, idle_seconds=30) as pool:
        pool.get("a")
        ultramon_clock.advance(59)
        pool.get("b")
        assert len(pool) == 2
        ultramon_clock.advance(1)
        pool.get("c")
        assert sorted(pool._conversations) == ["b", "c"]
        ultramon_clock.advance(59)
        pool.get("c")
        assert sorted(pool._conversations) == ["b", "c"]


def test_a_conversation_closed_by_name_ends_with_that_outcome(pool, store):
    """An unknown outcome is refused and the conversation continues; an unknown name is nothing."""
    pool.get("alice")
    with pytest.raises(ValueError, match="no outcome 'done'"):
        pool.close("alice", "done")
    assert stored(store, "alice").active
    pool.close("alice", "failed")
    pool.close("alice")
    pool.rest("alice")
    assert stored(store, "alice").outcome == "failed"


def test_a_monitor_stopped_by_its_own_code_is_replaced(pool):
    """A conversation that ended itself begins a new life with the next use."""
    pool.get("alice").stop()
    pool.rest("alice")
    assert pool.get("alice").get_state().generation == 2


def test_leaving_the_pool_ends_each_conversation_as_its_own_block_would(store, ultramon_clock):
    """Returned after a handoff, completed else; the pool can be used again."""
    pool = MonitorPool(backend=store, clock=ultramon_clock)
    with pool:
        pool.get("a")
        pool.get("b").hand_off()
    assert [stored(store, name).outcome for name in "ab"] == ["completed", "returned"]
    with pool:
        assert pool.get("a").get_state().generation == 2


def test_an_error_in_the_pools_block_is_the_outcome_of_its_conversations(store, ultramon_clock):
    """Each state has the type of the error, as for a single monitor."""
    pool = MonitorPool(backend=store, clock=ultramon_clock)
    pool.get("a")
    with pytest.raises(KeyError), pool:
        raise KeyError("x")
    state = stored(store, "a")
    assert (state.outcome, state.exit) == ("failed", {"error": "KeyError"})


def test_an_agent_that_lives_outside_the_pool_is_not_taken(pool, make):
    """The error is the monitor's own, and the conversation can be used once that agent ended."""
    other = make("alice")
    with pytest.raises(AgentAlreadyRunningError):
        pool.get("alice")
    other.stop()
    assert pool.get("alice").get_state().generation == 2


def test_threads_that_ask_at_once_get_the_same_monitor(pool):
    """One of them makes it, the others wait for it."""
    got, ready = [], threading.Barrier(8)

    def ask():
        ready.wait()
        got.append(pool.get("alice"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 8
    assert set(got) == {pool.get("alice")}


def test_threads_may_use_and_close_one_conversation_at_once(pool, store):
    """Each life ends before the next begins: no thread is refused, and none is left active."""
    ready = threading.Barrier(4)

    def use():
        ready.wait()
        for _ in range(20):
            pool.get("alice")
            pool.close("alice")

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pool) == 0
    assert not stored(store, "alice").active


def test_idle_seconds_must_be_positive():
    """The message names the setting and what is allowed."""
    with pytest.raises(ConfigurationError, match=r"idle_seconds=0 .* must be > 0"):
        MonitorPool(idle_seconds=0)
