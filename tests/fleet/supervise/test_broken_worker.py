"""A worker that is broken ends the call: `Fleet.supervise` with real processes."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace

import pytest
from helpers.supervised import effects, spawner

from ultramon import Fleet, RunUnfinishedError, open_backend
from ultramon.errors import SpawnError
from ultramon.fleet.journal_event import Closing, JournalEvent
from ultramon.fleet.supervise import supervisor
from ultramon.fleet.supervise.broken_worker import EarlyEnds, is_refusal
from ultramon.fleet.supervise.pool import WorkerContext
from ultramon.state.record import StateRecord
from ultramon.testing.clock import START

ITEMS = [f"item {number}" for number in range(30)]


@pytest.fixture
def fleet(monkeypatch):
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE_SECONDS", 0.02)
    fleet = Fleet("job", poll_interval_seconds=0.2)
    yield fleet
    fleet.close()


def program(code):
    """A spawn that runs a program of Python, as the documents say."""
    return lambda job: job.popen([sys.executable, "-c", code])


AT_AN_ITEM = """
import ultramon
with ultramon.worker() as agent:
    for item in agent.pending():
        raise ValueError("no such model: x")
"""


def test_a_worker_that_fails_at_its_import_is_started_three_times(fleet, caplog):
    """The result shows its last lines on stderr."""
    result = fleet.supervise(program("import no_such_module"), ITEMS)
    assert (result.stopped, len(result.contexts), result.counts.left) == ("broken_worker", 3, 30)
    first, *last = result.failure.splitlines()
    assert first.startswith("3 contexts in a row ended alike: lost (exit code 1); 3 processes")
    assert last[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert result.failure in str(result)
    assert result.to_json()["failure"] == result.failure
    assert "run job stops: 3 contexts in a row" in caplog.text
    with pytest.raises(RunUnfinishedError, match="No module named 'no_such_module'"):
        result.raise_for_failure()


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_fails_at_every_item_is_started_three_times(workers, fleet):
    """The result shows the exception that its agent stored; set-aside items are no progress."""
    result = fleet.supervise(program(AT_AN_ITEM), ITEMS, workers=workers)
    assert result.stopped == "broken_worker"
    assert 3 <= len(result.contexts) < 3 + workers
    assert "ended alike: failed (ValueError: no such model: x)" in result.failure
    stored = open_backend().load("job.1").record
    assert stored.exit == {"error": "ValueError", "message": "ValueError: no such model: x"}


def test_a_worker_that_breaks_on_the_way_ends_the_call(fleet, tmp_path):
    """After claims it takes the same end at three items; two that fail alike are set aside."""
    items = ["a", "poison 1", "poison 2", "b", "poison 3", "poison 4", "poison 5", "c"]
    result = fleet.supervise(spawner(tmp_path, "fails"), items)
    assert effects(tmp_path) == ["a", "b"]
    assert (result.stopped, len(result.contexts)) == ("broken_worker", 15)
    assert list(result.set_aside) == [f"poison {number}" for number in range(1, 5)]
    assert result.left == ("poison 5", "c")


def test_a_refusal_of_the_provider_is_no_broken_worker(fleet):
    """It is followed by pauses, and by the last restart."""
    code = AT_AN_ITEM.replace(
        "        raise", "        ValueError.status_code = 429\n        raise"
    ).replace("ValueError", "Limited")
    code = f"class Limited(Exception): pass\n{code}"
    result = fleet.supervise(program(code), ITEMS, max_restarts=4)
    assert (result.stopped, len(result.contexts), result.failure) == ("max_restarts", 5, None)


def test_a_worker_without_the_environment_of_its_job_is_named(fleet, tmp_path, caplog):
    """It runs, finds no work and ends well: the supervisor says what was forgotten."""
    caplog.set_level(logging.WARNING)
    code = "import ultramon\nwith ultramon.worker() as agent:\n    list(agent.pending())"
    printed = tmp_path / "printed"

    def spawn(job):
        with open(printed, "ab") as file:
            env = {**job.env, "ULTRAMON_AGENT_ID": "", "ULTRAMON_SUPERVISED": ""}
            return subprocess.Popen([sys.executable, "-c", code], env=env, stderr=file)

    result = fleet.supervise(spawn, ITEMS, max_restarts=1)
    assert (result.stopped, len(result.contexts)) == ("max_restarts", 2)
    hint = "2 processes ended and their agents were never seen, job.2 the last: pass env=job.env"
    assert hint in result.failure
    assert hint in str(result)
    assert caplog.text.count(hint) == 2  # after the second child, and as the call stops
    assert printed.read_text().count("pass env=job.env to the process that supervise starts") == 2


@pytest.mark.parametrize("error", [TypeError("takes 0"), FileNotFoundError(2, "none", "nosuch")])
def test_a_spawn_that_can_start_nothing_is_an_error_once(error, fleet, tmp_path):
    """Agents that run hand off first, and the run continues under the same name."""
    start, calls = spawner(tmp_path, "waits"), []

    def spawn(job):
        calls.append(job.agent_id)
        if len(calls) == 2:
            raise error
        return start(job)

    with pytest.raises(SpawnError, match=f"spawn raised {type(error).__name__} for job.2") as found:
        fleet.supervise(spawn, ["a", "b"], workers=2)
    assert (found.value.__cause__, found.value.run, calls) == (error, "job", ["job.1", "job.2"])
    result = Fleet("job").supervise(spawner(tmp_path, "obey"))
    assert result.ok
    assert result.contexts[0].reason in ("returned", "completed")


def test_an_end_in_good_order_begins_the_count_anew():
    """Three are in a row only without another end between them."""
    ends = EarlyEnds()
    context = WorkerContext("job.1", ["a"], None, "me", None)
    lost = StateRecord("job.1", run="job", epoch=1).event("agent_lost", at=START, n=0)
    context.end = JournalEvent.of(lost)
    failed = Closing(
        "lost (exit code 1)",
        died=True,
        killed=False,
        progress=False,
        begun=["a"],
        charged=["a"],
        killed_outside=[],
    )

    def note(**facts):
        return ends.note(context, replace(failed, **facts), {"returncode": 1}, [], has_claims=False)

    assert [note(), note(), note(died=False), note(), note()] == [False] * 5
    assert [note(reason="lost (exit code 2)"), note(), note(), note()] == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("exited", "is_one"),
    [
        ({"error": "RateLimitError", "statusCode": 429}, True),
        ({"reason": "request failed", "error": "rate_limit"}, True),
        ({"error": "KeyError"}, False),
        ({"returncode": 1}, False),
    ],
)
def test_a_refusal_is_known_by_what_the_agent_or_its_client_stored(exited, is_one):
    """The exception of an SDK has a status, a client a reason of its own."""
    assert is_refusal(exited) is is_one
