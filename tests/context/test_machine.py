"""The two machines: which moves and verbs exist, and how the others are refused."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_thresholds import ladders, limits, usage_ratios

from ultramon.context.ladder import DEFAULT_LADDER, Ladder, Rung, next_level
from ultramon.context.level_machine import LevelMachine
from ultramon.errors import LifecycleError
from ultramon.monitor.lifecycle_machine import LifecycleMachine
from ultramon.state.liveness import OUTCOMES

# Names that `transitions` gives a meaning of its own must be ordinary levels here.
awkward = ["initial", "state", "trigger", "model", "to", "is-up", "rise_to_x", "0", "-", "_", "may"]
level_names = st.lists(
    st.sampled_from(awkward) | st.text("abc0_-", min_size=1, max_size=6),
    min_size=2,
    max_size=6,
    unique=True,
)

READS = {"get_state", "get_threshold_action", "explain", "pending", "steps", "pinned_rules"}
SETTINGS = {"plan", "set_tasks_total", "set_model", "set_host_limits"}
WORK = {
    "track_content", "report_usage", "report_response", "report_overflow", "fits", "clear",
    "record_compaction", "waiting", "working", "update_heartbeat", "task", "set_current_task",
    "complete_task", "step", "checkpoint", "hand_off", "stop",
}  # fmt: skip
ALLOWED = {
    "created": {"start"} | SETTINGS | READS,
    "active": WORK | SETTINGS | READS,
    "ended": {"stop"} | READS,
}
VERBS = sorted(set().union(*ALLOWED.values()))


def lifecycle(phase):
    """A lifecycle machine in a phase."""
    machine = LifecycleMachine("scout-1")
    if phase != "created":
        machine.begin()
    if phase == "ended":
        machine.finish("completed")
    return machine


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("phase", list(ALLOWED))
def test_every_phase_allows_its_verbs_and_no_others(phase, verb):
    """The error names agent, phase, verb, and everything that is allowed instead."""
    machine = lifecycle(phase)
    if verb in ALLOWED[phase]:
        machine.require(verb)
        return
    with pytest.raises(LifecycleError) as caught:
        machine.require(verb)
    error = caught.value
    assert (error.agent_id, error.phase, error.verb) == ("scout-1", phase, verb)
    assert set(error.allowed) == ALLOWED[phase]
    assert str(error) == (
        f"agent scout-1 is {phase}: {verb}() is not allowed; "
        f"allowed now: {', '.join(error.allowed)}"
    )


def test_the_verbs_of_the_machine_are_the_methods_of_the_monitor():
    """No verb is spelt differently from what a caller writes."""
    from ultramon.monitor.monitor import ContextMonitor

    assert all(callable(getattr(ContextMonitor, verb)) for verb in VERBS)


def test_life_goes_from_created_over_active_to_ended():
    """Once each."""
    machine = lifecycle("created")
    assert machine.phase == "created"
    machine.begin()
    assert machine.phase == "active"
    machine.finish("returned")
    assert machine.phase == "ended"


@pytest.mark.parametrize(
    ("phase", "verb", "call"),
    [
        ("active", "start", LifecycleMachine.begin),
        ("ended", "start", LifecycleMachine.begin),
        ("created", "stop", lambda machine: machine.finish("completed")),
        ("ended", "stop", lambda machine: machine.finish("failed")),
    ],
)
def test_no_phase_comes_twice(phase, verb, call):
    """An illegal transition is a LifecycleError, and nothing has moved."""
    machine = lifecycle(phase)
    before = machine.phase
    with pytest.raises(LifecycleError, match=f"agent scout-1 is {phase}: {verb}\\(\\)"):
        call(machine)
    assert machine.phase == before


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_every_outcome_ends_an_agent(outcome):
    """The six outcomes of the contract."""
    machine = lifecycle("active")
    machine.finish(outcome)
    assert machine.phase == "ended"


@pytest.mark.parametrize("outcome", ["done", "", None, "Completed"])
def test_an_outcome_that_does_not_exist_ends_nothing(outcome):
    """The error lists the outcomes there are."""
    machine = lifecycle("active")
    with pytest.raises(ValueError, match="choose one of completed, returned, failed"):
        machine.finish(outcome)
    assert machine.phase == "active"


def ladder_of(names):
    """A ladder of these levels, its rungs at equal distances."""
    rungs = [Rung(name, height / len(names)) for height, name in enumerate(names) if height]
    return Ladder(rungs, base=names[0], rearm_margin=0.0)


@given(level_names, st.data())
def test_any_level_is_reached_from_any_other(names, data):
    """Up and down, over any distance, whatever the levels are called."""
    ladder = ladder_of(names)
    machine, resolved = LevelMachine(ladder), ladder.resolve(None)
    assert (machine.names, machine.level) == (tuple(names), names[0])
    for target in data.draw(st.lists(st.sampled_from(names), max_size=12)):
        ratio = (names.index(target) + 0.5) / len(names)
        assert machine.decide(machine.level, ratio, resolved) == machine.level == target


@given(ladders(), st.data())
def test_the_machine_and_next_level_are_one_table(ladder, data):
    """Over any readings and limits, restarts and epochs: the level is that of the pure function."""
    machine, resolved = LevelMachine(ladder), ladder.resolve(None)
    level = None
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["read", "read", "read", "limit", "restart"]))
        if step == "limit":
            resolved = ladder.resolve(data.draw(st.none() | limits))
        elif step == "restart":
            level = data.draw(st.none() | st.sampled_from([*machine.names, "of-another-ladder"]))
        else:
            edges = [edge for rung in resolved.rungs for edge in (rung.ratio, rung.rearm_ratio)]
            near = st.sampled_from([None, 0.0, *filter(None, edges)])
            ratio = data.draw(usage_ratios | near)
            following = next_level(level, ratio, resolved)
            assert machine.decide(level, ratio, resolved) == following
            level = following


@given(ladders(), st.none() | limits, usage_ratios, st.data())
def test_the_library_refuses_what_the_ladder_forbids(ladder, limit, ratio, data):
    """Also where no bound keeps a reading from it: the trigger takes the ladder's arc, or none."""
    resolved = ladder.resolve(limit)
    machine = LevelMachine(ladder)
    machine.decide(None, 0.0, resolved)
    level = data.draw(st.sampled_from(machine.names))
    machine.place(level)
    moved = machine._model.trigger("read", ratio)
    assert machine.level == next_level(level, ratio, resolved)
    assert moved is (machine.level != level)


def test_a_rung_that_a_smaller_limit_drops_relaxes_to_the_base():
    """One of 60,000 tokens left makes no sense in a window of 50,000."""
    ladder = Ladder([Rung("early", None, 60_000), Rung("late", 0.85)])
    machine, large, small = LevelMachine(ladder), ladder.resolve(200_000), ladder.resolve(50_000)
    assert machine.decide("normal", 0.8, large) == "early"
    assert machine.decide("early", 0.8, small) == "normal"
    assert machine.decide("normal", 0.9, small) == "late"


def test_two_machines_do_not_share_their_state():
    """Each monitor has its own, also of the same ladder."""
    one, other = LevelMachine(DEFAULT_LADDER), LevelMachine(DEFAULT_LADDER)
    one.decide(None, 0.9, DEFAULT_LADDER.resolve(None))
    assert (one.level, other.level) == ("critical", "normal")


def test_the_engine_underneath_writes_no_log_at_info(caplog):
    """Several lines per transition would fill an application's log at INFO."""
    with caplog.at_level(logging.INFO):
        lifecycle("ended")
        LevelMachine(DEFAULT_LADDER).decide(None, 0.9, DEFAULT_LADDER.resolve(None))
    assert caplog.records == []
