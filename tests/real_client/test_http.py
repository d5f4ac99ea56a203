"""The real client with requests instead of processes: same warnings, no harm from the server."""

import os
import signal
import threading

import pytest
from helpers.running_server import ServeProgram

from real_client.api import Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS, finish
from real_client.watch import Note, new_notes, notes

pytestmark = pytest.mark.real_client

AT_70 = Note(140_000, WINDOW_TOKENS, 70)
AT_80 = Note(160_000, WINDOW_TOKENS, 80)
EVENTS = ("--include-hook-events",)


@pytest.fixture
def server(states):
    """`ultramon serve` for the state directory of the sessions."""
    with ServeProgram(state=states.directory) as server:
        yield server


@pytest.fixture
def requested(server, install):
    """A client whose tool calls are told by requests."""
    return install("--via", "http")


def outcomes(session, *events):
    """How the hooks of some events ended, in order."""
    return [
        line["outcome"]
        for line in session.output
        if line.get("subtype") == "hook_response" and line["hook_event"] in events
    ]


def traces(client):
    """The lines about hooks in the transcripts, by their kind."""
    found = [
        kind
        for path in client.configuration.glob("projects/**/*.jsonl")
        for kind in ("hook_success", "hook_non_blocking_error", "hook_additional_context")
        for _ in range(path.read_text().count(f'"type":"{kind}"'))
    ]
    return sorted(found)


def test_warnings_arrive_by_requests(requested, states, api):
    """In the session and in its subagent, at the same call as by processes, and nothing else."""
    api.play(
        bash(20_000, "echo 1"),
        bash(140_000, "echo 2"),
        agent(141_000, "scout"),
        Reply(142_000, "It looks."),
        Reply(143_000, "Done."),
    )
    api.play(bash(20_000, "echo 3"), bash(160_000, "false"), Reply(161_000, "Seen."),
             conversation="scout")  # fmt: skip
    session = requested.run(marked("fill the window"), *EVENTS)
    assert session.result["result"] == "Done."
    assert [new_notes(turn) for turn in api.turns()][:3] == [[], [], [AT_70]]
    assert notes(api.turns()[-1]) == [AT_70]
    assert [new_notes(turn) for turn in api.turns("scout")] == [[], [], [AT_80]]
    assert set(outcomes(session, "PreToolUse", "PostToolUse", "PostToolUseFailure")) == {"success"}
    during = api.turns()[2].seen[session.session_id]
    assert (during.estimated_tokens, during.pid is not None) == (140_000, True)
    assert len(states.all()) == 2
    assert {record.outcome for record in states.all().values()} == {"completed"}
    # Each leaves one line: two warnings, and to the session how full its subagent ended.
    assert traces(requested) == ["hook_additional_context"] * 3 + ["hook_success"] * 2


def test_a_server_that_is_killed_takes_nothing_from_the_session(server, requested, states, api):
    """The agent sees nothing of it and goes on; its prompt and its end are still told."""
    gate = threading.Event()
    api.play(
        bash(20_000, "echo 1"),
        bash(120_000, "echo 2", gate=gate),
        bash(150_000, "echo 3"),
        Reply(151_000, "Done."),
    )
    process = requested.start(marked("fill the window"), *EVENTS)
    try:
        api.wait_for_turns(2)
        server.stop(signal.SIGKILL)
    finally:
        gate.set()
        session = finish(process)
    assert session.returncode == 0
    assert (session.result["result"], session.result["is_error"]) == ("Done.", False)
    assert outcomes(session, "PreToolUse", "PostToolUse") == ["success"] * 2 + ["error"] * 4
    assert not any("ECONNREFUSED" in text for text in api.turns()[-1].texts)
    record = states.only()
    # At its first Stop the client may not have written the last reply yet.
    assert record.estimated_tokens in (150_000, 151_000)
    assert (record.active, record.threshold_status) == (False, "critical")


def test_a_server_that_hangs_costs_a_bounded_time(server, requested, api):
    """It accepts and never answers: the client gives each request up and goes on."""
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Done."))
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        session = requested.run(marked("begin"), *EVENTS)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert (session.result["result"], session.result["is_error"]) == ("Done.", False)
    assert outcomes(session, "PreToolUse", "PostToolUse") == ["cancelled"] * 2


def test_the_secret_may_come_from_the_environment(server, install, states, api):
    """The client puts it into the header by itself, and nothing of it is in the settings."""
    client = install("--via", "http", "--secret-in", "environment")
    secret = (states.directory / "hook.secret").read_text().strip()
    assert secret not in client.settings.read_text()
    api.play(bash(120_000, "echo 1"), bash(140_000, "echo 2"), Reply(141_000, "Done."))
    client.run(marked("fill the window"), ULTRAMON_HOOK_SECRET=secret)
    assert new_notes(api.turns()[-1]) == [AT_70]


def test_a_session_that_is_switched_off_is_not_seen(requested, states, api):
    """Neither by its processes nor by its requests, which still go out."""
    api.play(bash(140_000, "echo 1"), Reply(141_000, "Done."))
    session = requested.run(marked("fill the window"), *EVENTS, ULTRAMON_DISABLED="1")
    assert outcomes(session, "PreToolUse", "PostToolUse") == ["success"] * 2
    assert notes(api.turns()[-1]) == []
    assert states.all() == {}
