"""Turns that Codex reports to its `notify` program without trust, and what else it may get."""

import json
from pathlib import Path

import pytest
from helpers import DATA
from helpers.codex_client import Client
from helpers.program import PROGRAM, run_process
from helpers.scripted_model import Step
from helpers.waiting import until

from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts import failure_log

THREAD = "01a20330-6723-72e3-ba49-0b404e343445"
RECORDED = DATA / "hooks" / "codex-0.169.0" / "plain"


@pytest.fixture
def notify(tmp_path):
    """Runs the command as the client does, beside a recorded rollout; gives what is known then."""
    day = tmp_path / "codex" / "sessions" / "2026" / "11" / "20"
    day.mkdir(parents=True)
    (recorded,) = RECORDED.rglob(f"rollout-*-{THREAD}.jsonl")
    rollout = day / recorded.name
    rollout.write_bytes(recorded.read_bytes())
    states = tmp_path / "state"
    states.mkdir(mode=0o700)

    def call(payload, **variables):
        environ = {"CODEX_HOME": str(tmp_path / "codex"), "ULTRAMON_STATE_DIR": str(states)}
        text = payload if isinstance(payload, str) else json.dumps(payload)
        done = run_process("hook", "codex", text, **(environ | variables))
        assert (done.returncode, done.stdout) == (0, "")
        directory = StateDirectory(str(states))
        failures = failure_log.read(failure_log.log_path(str(states), "codex"))
        records = [directory.read(one) for one in directory.list_ids()]
        return records, [one["problem"] for one in failures]

    call.rollout = rollout
    return call


def turn(**members):
    """What the client says of a turn."""
    said = {"type": "agent-turn-complete", "thread-id": THREAD, "cwd": "/srv/project"}
    return said | {"input-messages": ["do the work"], "last-assistant-message": "done"} | members


def test_a_turn_is_a_reading_without_a_process(notify):
    """The rollout says that this was `codex exec`, which ends with it."""
    (record,), failures = notify(turn())
    assert (record.session_id, record.estimated_tokens, record.pid) == (THREAD, 205_000, None)
    assert (record.outcome, record.label) == ("completed", "project: do the work")
    assert (record.threshold_status, record.context_limit) == ("critical", 258_400)
    assert failures == []


def test_a_session_on_a_terminal_waits_after_its_turn(notify):
    """It continues with the next prompt."""
    data = notify.rollout.read_bytes()
    notify.rollout.write_bytes(data.replace(b'"turn_trigger": "exec"', b'"turn_trigger": "user"'))
    assert notify.rollout.read_bytes() != data
    for _ in range(2):
        (record,), failures = notify(turn())
        assert (record.active, record.phase, record.generation) == (True, "waiting", 1)
        assert failures == []


@pytest.mark.parametrize(
    "payload",
    [
        turn(type="approval-requested"),
        turn(**{"thread-id": "01a20330-0000-7000-8000-000000000000"}),
        {"type": "agent-turn-complete"},
    ],
    ids=["another-type", "no-rollout", "no-thread"],
)
def test_what_is_no_turn_of_a_session_makes_no_agent(notify, payload):
    """The client finds a title in a thread of its own, which it never writes down."""
    assert notify(payload) == ([], [])


@pytest.mark.parametrize(
    "payload",
    ["", "{", "[]", '"x"', json.dumps(turn(**{"thread-id": 7})), json.dumps(turn(cwd=["x"]))],
)
def test_a_hostile_payload_ends_in_the_failure_log(notify, payload):
    """The client is never broken."""
    records, failures = notify(payload)
    assert (records, len(failures)) == ([], 1)


def test_a_thread_that_is_no_name_of_a_file_reads_nothing(notify):
    """It names no rollout, and none outside of the client's folder."""
    assert notify(turn(**{"thread-id": "../../../etc/passwd"})) == ([], [])


def test_nothing_is_done_where_ultramon_is_off_or_a_relay_runs(notify):
    """A relay's own hooks report its sessions."""
    assert notify(turn(), ULTRAMON_DISABLED="1") == ([], [])
    assert notify(turn(), ULTRAMON_RELAY="run") == ([], [])


def test_other_clients_give_no_payload_in_an_argument(tmp_path):
    """Said to the person who tries."""
    done = run_process("hook", "gemini", "{}", ULTRAMON_STATE_DIR=str(tmp_path))
    assert (done.returncode, "only codex adds one" in done.stderr) == (2, True)


@pytest.mark.exhaustive
def test_the_real_client_reports_its_turns_without_trust(tmp_path):
    """One session over two runs; once hooks report it, its notices change nothing."""
    client = Client(tmp_path)
    line = f'notify = ["{PROGRAM}", "hook", "codex"]'

    def has_ended_with(tokens):
        return [(one.estimated_tokens, one.active) for one in client.records()] == [(tokens, False)]

    with client.api({"MAIN": [Step(20_000, "true"), Step(180_000), Step(210_000)]}, config=line):
        assert client.run("[[MAIN]] work", trusted=False).returncode == 0
        until(lambda: has_ended_with(180_000))
        assert client.run("resume", "--last", "[[MAIN]] more", trusted=False).returncode == 0
        until(lambda: has_ended_with(210_000))
    (record,) = client.records()
    assert (record.outcome, record.generation, record.pid) == ("completed", 2, None)
    assert (record.context_limit, record.threshold_status) == (258_400, "critical")
    assert client.ultramon("install", "codex", "--force").returncode == 0
    with client.api({"MAIN": [Step(211_000, "true"), Step(212_000)]}) as api:
        assert client.run("resume", "--last", "[[MAIN]] hooked").returncode == 0
    assert (api.left(), client.failures()) == ({}, [])
    hooked = Path(StateDirectory(str(client.states)).file(record.agent_id))
    before = hooked.read_bytes()
    said = turn(**{"thread-id": record.agent_id})
    assert client.ultramon("hook", "codex", json.dumps(said)).returncode == 0
    assert hooked.read_bytes() == before
