"""The public test kit: fake clock, scripted agents, signal capture, samples, fixtures, suite."""

import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest
from helpers.distributions import EXTENSIONS
from hypothesis import given
from hypothesis import strategies as st

import ultramon.testing
from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.memory import MemoryBackend
from ultramon.context.estimator import FAMILIES
from ultramon.state.events import parse_event
from ultramon.state.models import AgentState
from ultramon.state.record import decode_state, encode_state
from ultramon.testing import (
    BackendContract,
    FakeClock,
    ScriptedAgent,
    capture_signals,
    fill,
    make_event,
    make_record,
)
from ultramon.testing.clock import START

EXAMPLE = EXTENSIONS / "backend" / "ultramon_jsonl.py"
LIMIT = {"context_limit_tokens": 100_000, "tokenizer_family": "chars/4"}


def load_example():
    spec = importlib.util.spec_from_file_location("ultramon_jsonl", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ultramon_jsonl = load_example()


class TestExampleBackend(BackendContract):
    @pytest.fixture
    def backend(self, tmp_path):
        return ultramon_jsonl.JsonLinesBackend(str(tmp_path / "agents.jsonl"))

    @pytest.fixture
    def reopen(self):
        return lambda backend: ultramon_jsonl.JsonLinesBackend(backend.path)

    @pytest.fixture
    def damage(self):
        def damage(backend, agent_id):
            with open(backend.path, "a") as file:
                file.write(json.dumps({"states": {agent_id: "torn"}}) + "\n")

        return damage

    def test_a_torn_last_line_is_cut_off(self, backend):
        """What a killed writer left half written is gone after the next look; the rest stays."""
        backend.append_events([make_event("scout-1", n=n) for n in (0, 1)])
        with open(backend.path, "ab") as file:
            file.write(b'{"events": [[3, {"age')
        again = ultramon_jsonl.JsonLinesBackend(backend.path)
        again.append_events([make_event("scout-1", n=2)])
        assert [event["n"] for event in backend.events().events] == [0, 1, 2]


HALF = """
import pytest
from ultramon.testing import BackendContract

class Half:
    url = "half:"
    def load(self, agent_id): ...

class TestHalf(BackendContract):
    @pytest.fixture
    def backend(self):
        return Half()
"""


def test_all_that_a_backend_lacks_is_one_failure(tmp_path):
    """The tests that would need it are skipped."""
    (tmp_path / "test_half.py").write_text(HALF)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_half.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"^1 failed, \d\d+ skipped in", done.stdout, re.MULTILINE), done.stdout
    assert "the backend lacks start_agent, record, heartbeat, history, list_agents, " in done.stdout


def test_public_names_are_what_is_reachable():
    """`__all__` is sorted and resolves whole; a misspelt name says where it was looked for."""
    names = ultramon.testing.__all__
    assert names == sorted(names)
    assert all(getattr(ultramon.testing, name) is not None for name in names)
    assert set(names) <= set(dir(ultramon.testing))
    with pytest.raises(AttributeError, match=r"'ultramon\.testing' has no attribute 'nonsense'"):
        _ = ultramon.testing.nonsense


def test_the_plugin_is_cheap():
    """Every pytest run of every project loads the plugin: it imports nothing else of ultramon."""
    code = (
        "import pytest, sys; before = set(sys.modules); import ultramon.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["ultramon", "ultramon.testing", "ultramon.testing.plugin"]


def test_a_fake_clock_stands_still():
    """Both times move by the given seconds only."""
    clock = FakeClock()
    assert (clock.now(), clock.monotonic(), clock.now()) == (START, 0.0, START)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (START + 2.5, 2.5)
    clock.jump(-3600)
    assert (clock.now(), clock.monotonic()) == (START + 2.5 - 3600, 2.5)
    assert FakeClock(start=7).now() == 7


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_time_does_not_go_back(seconds):
    """Only the wall clock can be set back, by `jump`."""
    with pytest.raises(ValueError, match=r"see jump\(\)"):
        FakeClock().advance(seconds)


@given(steps=st.lists(st.integers(0, 40), max_size=12))
def test_many_small_steps_are_one_large_one(steps):
    """What is due happens at its time, in however many steps the clock is advanced."""

    def beats(*seconds):
        clock, backend = FakeClock(), MemoryBackend()
        monitor = create_context_monitor("scout-1", backend=backend, clock=clock).start()
        for step in seconds:
            clock.advance(step)
        agent = backend.load("scout-1")
        return agent.heartbeat_at, agent.record.seq, monitor.get_state().last_heartbeat

    assert beats(*steps) == beats(sum(steps))


def test_a_script_is_run_by_a_real_monitor(ultramon_clock, ultramon_backend, ultramon_signals):
    """Every step does what its verb says, and the answers are kept in order."""
    monitor = create_context_monitor(
        "scout-1", ContextConfig(**LIMIT), backend=ultramon_backend, clock=ultramon_clock
    )
    agent = ScriptedAgent(
        monitor,
        [
            ("track", 4_000),
            ("track", "four"),
            ("report", 60_000),
            ("task", "a"),
            ("begin", "b"),
            ("fill", 0.72),
            ("wait",),
            ("advance", 100),
            ("work",),
            ("compact", 10_000),
            ("fill", 0.9),
            ("clear",),
            ("hand_off", "notes"),
            ("stop", "returned"),
        ],
        advance=ultramon_clock.advance,
    ).run()
    assert agent.levels == [
        "normal",
        "normal",
        "normal",
        "warning",
        "normal",
        "critical",
        "normal",
    ]
    assert ultramon_clock.monotonic() == 100
    assert (agent.handoff.completed, agent.handoff.interrupted) == (("a",), ("b",))
    assert agent.handoff.notes == "notes"
    assert ultramon_backend.load("scout-1").record.outcome == "returned"
    assert [(name, event.epoch) for name, event in ultramon_signals] == [
        ("agent_started", 1),
        ("context_threshold_reached", 1),
        ("context_epoch_started", 2),
        ("context_threshold_reached", 2),
        ("context_epoch_started", 3),
        ("handoff_ready", 3),
        ("agent_stopped", 3),
    ]


def test_a_script_can_vanish(ultramon_monitor, ultramon_backend):
    """After `vanish` nothing more is done, and the agent is not ended."""
    ScriptedAgent(ultramon_monitor("scout-1"), [("vanish",), ("stop", "failed")]).run()
    assert ultramon_backend.load("scout-1").record.active


def test_a_step_that_does_not_exist_is_refused(ultramon_monitor):
    """The error names the verbs there are; a clock is asked for where one is needed."""
    monitor = ultramon_monitor("scout-1")
    with pytest.raises(ValueError, match="no step 'sleep': choose one of track, report, "):
        ScriptedAgent(monitor, [("sleep", 1)]).run()
    with pytest.raises(ValueError, match=r"advance=clock\.advance"):
        ScriptedAgent(monitor, [("advance", 1)]).run()


def test_captured_signals_are_of_the_block(ultramon_monitor):
    """Only what happens within the block is captured, of one agent if asked."""
    fill(ultramon_monitor("scout-1", **LIMIT), 0.9)
    second = ultramon_monitor("scout-2", **LIMIT)
    with capture_signals() as everything, capture_signals("scout-2") as own:
        ultramon_monitor("scout-3")
        fill(second, 0.72)
    fill(second, 0.9)
    assert [(name, event.agent_id) for name, event in everything] == [
        ("agent_started", "scout-3"),
        ("context_threshold_reached", "scout-2"),
    ]
    assert own == everything[1:]


@given(
    limit=st.integers(1, 5_000_000),
    ratio=st.one_of(st.sampled_from([0.7, 0.85, 1.0]), st.floats(0.001, 1.5)),
    family=st.sampled_from(FAMILIES),
)
def test_fill_makes_the_ratio(limit, ratio, family):
    """For every limit and family the ratio is the given one, up to one token."""
    config = ContextConfig(context_window_tokens=limit, tokenizer_family=family)
    monitor = create_context_monitor(
        "scout-1", config, backend=MemoryBackend(), clock=FakeClock()
    ).start()
    fill(monitor, ratio)
    reached = monitor.get_state().usage_ratio
    assert ratio - 1e-6 <= reached <= ratio + 1 / limit + 1e-6
    if ratio in (0.7, 0.85):
        assert monitor.get_state().threshold_status != "normal"


def test_fill_needs_a_limit_and_a_token(ultramon_monitor):
    """Where there is no ratio to make, the reason is in the error."""
    with pytest.raises(ValueError, match="its context limit is unknown"):
        fill(ultramon_monitor("scout-1", model="nobody-knows-this-one"), 0.5)
    with pytest.raises(ValueError, match="a report of 0 tokens is no reading"):
        fill(ultramon_monitor("scout-2"), 0.0)


def test_samples_are_valid():
    """A sample state has a file form and passes validation; a sample event is an event."""
    record = make_record("scout-1", 3, label="x", schema=1)
    again = decode_state(encode_state(record, "x"), "x")
    assert again.to_json() == record.to_json()
    assert AgentState.from_record(again).generation == 3
    assert parse_event(make_event("scout-1", n=4)).n == 4


def test_the_monitor_fixture_takes_fields_of_a_config(ultramon_monitor, ultramon_clock):
    """Fields of the configuration go beside the arguments of the factory; not with a config."""
    monitor = ultramon_monitor("scout-1", label="x", warning_threshold=0.5)
    assert monitor.get_state().ladder["rungs"][0]["ratio"] == 0.5
    assert ultramon_monitor("scout-2", ContextConfig(model="gpt-4.1")).get_state().model
    with pytest.raises(TypeError, match="not both: \\['model'\\]"):
        ultramon_monitor("scout-3", ContextConfig(), model="gpt-4.1")
    assert ultramon_clock.saver is not None


def test_the_suite_asks_for_a_backend(tmp_path):
    """A subclass without its fixture gets an error that names it."""
    test = tmp_path / "test_forgetful.py"
    test.write_text(
        "from ultramon.testing import BackendContract\n"
        "class TestForgetful(BackendContract):\n    pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:langsmith", "-x", str(test)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "TestForgetful needs a fixture `backend`" in done.stdout
