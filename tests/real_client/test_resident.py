"""The real client with a resident: same warnings at the same calls, and no harm from its end."""

import os
import signal
import tempfile
import threading
from contextlib import suppress

import pytest
from helpers.resident_session import until

from real_client.api import Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS, finish
from real_client.watch import Note, new_notes, notes
from ultramon.hosts.failure_log import log_path
from ultramon.hosts.failure_log import read as read_failures
from ultramon.hosts.resident.place import Place

pytestmark = pytest.mark.real_client

AT_66 = Note(132_000, WINDOW_TOKENS, 66)
AT_78 = Note(156_000, WINDOW_TOKENS, 78)
AT_80 = Note(160_000, WINDOW_TOKENS, 80)


@pytest.fixture
def sockets():
    """A folder of sockets with a short path."""
    with tempfile.TemporaryDirectory(prefix="um-") as folder:
        yield folder


@pytest.fixture
def place(states, sockets):
    """The place of the resident, which is killed at the end."""
    place = Place(str(states.directory), {"XDG_RUNTIME_DIR": sockets})
    yield place
    if running := place.running():
        with suppress(ProcessLookupError):
            os.kill(running["pid"], signal.SIGKILL)


@pytest.fixture
def answered(install):
    """A client whose hooks ask a resident."""
    return install()


def failures(states):
    return read_failures(log_path(str(states.directory), "claude-code"))


def test_warnings_are_those_of_processes(answered, api, states, place, sockets):
    """In the session and in its subagent, each in the very next request, by one resident."""
    api.play(
        *(bash(one, f"echo {one}") for one in (20_000, 30_000, 120_000, 132_000, 140_000, 156_000)),
        agent(157_000, "scout"),
        Reply(158_000, "It looks."),
        Reply(159_000, "Done."),
    )
    # Beyond a leap as large the next reply is waited for.
    api.play(bash(20_000, "echo 3"), bash(120_000, "echo 4"), bash(160_000, "false"),
             Reply(161_000, "Seen."), conversation="scout")  # fmt: skip
    session = answered.run(marked("fill the window"), XDG_RUNTIME_DIR=sockets)
    assert session.result["result"] == "Done."
    told = [new_notes(turn) for turn in api.turns()][:7]
    assert told == [[], [], [], [], [AT_66], [], [AT_78]]
    assert [new_notes(turn) for turn in api.turns("scout")] == [[], [], [], [AT_80]]
    facts = until(place.ask, "the resident does not answer")
    assert facts["calls"] > 16
    # Nor does the client say anything of a hook that it has not waited for.
    assert not any("PreToolUse" in text or "async hook" in text.lower()
                   for turn in api.turns() for text in turn.texts)  # fmt: skip
    assert facts["atOnce"] > 0
    assert {record.outcome for record in states.all().values()} == {"completed"}
    assert failures(states) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_one_that_goes_in_the_middle_is_missed_by_nobody(
    answered, api, states, place, sockets, number
):
    """The hooks that are running then, and all later ones, do their own work."""
    gate = threading.Event()
    api.play(
        bash(20_000, "echo 1"),
        bash(120_000, "echo 2", gate=gate),
        bash(132_000, "echo 3"),
        bash(156_000, "echo 4"),
        Reply(157_000, "Done."),
    )
    process = answered.start(marked("fill the window"), XDG_RUNTIME_DIR=sockets)
    try:
        api.wait_for_turns(2)
        os.kill(until(place.running, "no resident runs")["pid"], number)
    finally:
        gate.set()
        session = finish(process)
    assert session.result["result"] == "Done."
    assert notes(api.turns()[-1]) == [AT_66, AT_78]
    assert [new_notes(turn) for turn in api.turns()] == [[], [], [], [AT_66], [AT_78]]
    assert states.only().outcome == "completed"
    # One that holds a lock as it is stopped is killed, and that is noted.
    assert [one for one in failures(states) if "was killed" not in str(one)] == []


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_ten_sessions_at_once_are_answered_by_one(answered, api, states, place, sockets):
    """Every warning is in the very next request of its own session, and in no other one."""
    fills = (20_000, 30_000, 120_000, 132_000, 140_000, 156_000, 157_000)
    names = [f"s{number}" for number in range(10)]
    for number, name in enumerate(names):
        # Each has figures of its own, by which a text in a foreign session would be seen.
        steps = [bash(fill + number, "true") for fill in fills]
        api.play(*steps, Reply(158_000, "Done."), conversation=name)
    running = [answered.start(marked("work", name), XDG_RUNTIME_DIR=sockets) for name in names]
    sessions = [finish(process, 600) for process in running]
    assert {one.result["result"] for one in sessions} == {"Done."}
    for number, name in enumerate(names):
        first = Note(132_000 + number, WINDOW_TOKENS, 66)
        second = Note(156_000 + number, WINDOW_TOKENS, 78)
        told = [new_notes(turn) for turn in api.turns(name)]
        assert told == [[], [], [], [], [first], [], [second], []]
        assert notes(api.turns(name)[-1]) == [first, second]
    assert [record.outcome for record in states.all().values()] == ["completed"] * len(names)
    facts = until(place.ask, "the resident does not answer")
    assert facts["calls"] > len(names) * len(fills)
    # A journal that ten want at once may be busy; then their events wait, as they always do.
    assert [one for one in failures(states) if "events wait" not in str(one)] == []
