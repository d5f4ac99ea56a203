import json
import re
import signal
import sqlite3
import subprocess

import pytest
from helpers.program import PROGRAM, environment, run
from test_cli_status import HOSTILE

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.commands.events import EVENT_TYPES
from ultramon.cli.event_line import event_line
from ultramon.system.timestamps import format_time

PATIENCE_SECONDS = 30


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(str(tmp_path))
    yield backend
    backend.close()


@pytest.fixture
def agent(backend):
    """Makes agents with a window of 1,000 tokens."""

    def make(agent_id, **options):
        config = ContextConfig(context_limit_tokens=1_000, on_error="raise")
        return create_context_monitor(agent_id, config, backend=backend, **options)

    return make


@pytest.fixture
def lives(agent):
    """Two agents that lived and ended, in two runs."""
    with agent("scout-1", run="audit", label="night shift") as scout:
        scout.plan(["a", "b"])
        with scout.task("a"):
            scout.report_usage(input_tokens=750)
        scout.record_compaction(100)
        scout.report_usage(input_tokens=900)
        scout.hand_off("threshold_critical")
    with agent("scribe", run="minutes"):
        pass


def event(number, **values):
    """An event as the journal holds it."""
    return {
        "eventId": f"{number:032x}",
        "type": "agent_stale",
        "agentId": "a",
        "sessionId": "s",
        "run": "default",
        "generation": 1,
        "epoch": 1,
        "source": "test",
        "occurredAt": format_time(1_700_000_000 + number),
        "n": number,
        **values,
    }


def test_on_the_screen_of_an_agent_its_events_do_not_repeat_its_id():
    """The room is for what happened."""
    whole = event_line(event(1, agentId="scout-1"))
    assert whole.split()[2:4] == ["agent_stale", "scout-1"]
    own = event_line(event(1, agentId="scout-1"), with_agent=False)
    assert own.split()[2] == "agent_stale"
    assert "scout-1" not in own


def types(directory, *arguments, **changes):
    """The types of the events shown."""
    done = run("events", "--json", "--state-dir", directory, *arguments, **changes)
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["type"] for line in done.stdout.splitlines()]


def test_each_event_is_one_line_for_people(tmp_path, lives):
    """When, what, who, and the facts, in the order in which they were stored."""
    done = run("events", "--state-dir", tmp_path)
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ  ", "", x) for x in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert [re.sub(" +", " ", line) for line in lines] == [
        "agent_started scout-1",
        "context_threshold_reached scout-1 warning: prepare_handoff, 75 %,"
        " 750 of 1,000 tokens reported; warning is 70 % of 1.0k and more",
        "context_epoch_started scout-1 epoch 2 by compaction, 750 tokens before, 100 after",
        "context_threshold_reached scout-1 critical: force_return, 90 %,"
        " 900 of 1,000 tokens reported; critical is 85 % of 1.0k and more",
        "handoff_ready scout-1 threshold_critical, 1 completed, 1 remaining",
        "agent_stopped scout-1 returned",
        "agent_started scribe",
        "agent_stopped scribe completed",
    ]


def test_json_lines_are_the_journal(tmp_path, backend, lives):
    """Each line is one event with the journal's own names and values."""
    done = run("events", "--json", "--state-dir", tmp_path)
    assert [json.loads(line) for line in done.stdout.splitlines()] == backend.events().events


def test_events_can_be_chosen(tmp_path, lives):
    """By run, by agent (id, prefix or label), by one or several types."""
    of_scribe = ["agent_started", "agent_stopped"]
    assert types(tmp_path, "--run", "minutes") == of_scribe
    assert types(tmp_path, "--agent", "scr") == of_scribe
    assert len(types(tmp_path, "--agent", "night shift")) == 6
    assert types(tmp_path, "--agent", "scribe", "--type", "agent_started") == ["agent_started"]
    chosen = types(tmp_path, "--type", "handoff_ready", "--type", "context_epoch_started")
    assert chosen == ["context_epoch_started", "handoff_ready"]


@pytest.mark.parametrize(
    ("since", "numbers"),
    [
        ("2023-11-14T22:13:22Z", [2, 3]),
        ("2023-11-14T23:13:22.5+01:00", [3]),
        ("52w", []),
        ("5000w", [0, 1, 2, 3]),
    ],
)
def test_events_can_be_chosen_by_time(tmp_path, backend, since, numbers):
    """Since a moment, inclusive, or since so long ago."""
    backend.append_events([event(number) for number in range(4)])
    done = run("events", "--json", "--since", since, "--state-dir", tmp_path)
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == numbers


def test_a_long_journal_is_shown_whole(tmp_path, backend):
    """However many pages it takes, every event comes once and in order."""
    backend.append_events([event(number) for number in range(1_234)])
    done = run("events", "--json", "--state-dir", tmp_path)
    assert [json.loads(line)["n"] for line in done.stdout.splitlines()] == list(range(1_234))


def test_events_of_a_deleted_agent_are_found(tmp_path, lives):
    """The journal remembers longer than the states; its whole id is needed then."""
    assert "scribe" in run("backend", "prune", "--older-than", "0s", "--state-dir", tmp_path).stdout
    assert types(tmp_path, "--agent", "scribe") == ["agent_started", "agent_stopped"]
    assert run("events", "--agent", "scrib", "--state-dir", tmp_path).returncode == 3


def test_events_of_an_unreadable_agent_are_found(tmp_path, lives):
    """A torn state does not hide what happened."""
    (tmp_path / "subagents" / "scribe.json").write_text("{")
    assert types(tmp_path, "--agent", "scribe") == ["agent_started", "agent_stopped"]


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("nobody", 3, "Error: no agent nobody: "),
        ("", 3, "Error: no agent : "),
        ("sc", 4, "Error: prefix sc fits 2 agents: scout-1, scribe"),
    ],
)
def test_a_name_that_means_nobody_or_several_says_so(tmp_path, lives, name, code, words):
    """3 for no agent, 4 for several, one line each."""
    done = run("events", "--agent", name, "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(words)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [["--since", "yesterday"], ["--since", "2h30"], ["--type", "no_such_thing"]]
)
def test_wrong_usage_ends_with_2(tmp_path, arguments):
    """What is no time and no type is named."""
    done = run("events", *arguments, "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert arguments[1] in done.stderr


def test_an_empty_directory_has_no_events(tmp_path):
    """A directory that does not exist is as good as an empty one, and is not created."""
    done = run("events", "--state-dir", tmp_path / "none")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no events\n")
    assert run("events", "--json", "--state-dir", tmp_path / "none").stderr == ""
    assert not (tmp_path / "none").exists()


def test_an_unreadable_journal_is_one_line(tmp_path):
    """Garbage in its place is said, and left as it is."""
    journal = tmp_path / "journal.sqlite3"
    journal.write_bytes(b"garbage" * 1_000)
    journal.chmod(0o600)
    done = run("events", "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"Error: .*journal\.sqlite3.*\n", done.stderr)
    assert journal.read_bytes() == b"garbage" * 1_000


def test_reading_changes_nothing(tmp_path, backend, lives):
    """No state is touched, no name is subscribed, no event is added."""

    def content():
        with sqlite3.connect(tmp_path / "journal.sqlite3") as journal:
            dump = list(journal.iterdump())
        journal.close()
        folder = tmp_path / "subagents"
        return dump, {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in folder.iterdir()}

    before = content()
    assert run("events", "--state-dir", tmp_path).returncode == 0
    assert content() == before


def test_a_hostile_journal_cannot_touch_the_terminal(tmp_path, backend):
    """Any event gives one line of plain text, senseless values marked; a damaged row gives none."""
    senseless = {"level": HOSTILE, "tokens": [], "contextLimit": HOSTILE, "usageRatio": {}}
    backend.append_events(
        [
            event(0, reason=HOSTILE, agentId=HOSTILE),
            event(1, type="context_relaxed", action=5, **senseless),
            event(2, type="handoff_ready", handoff=[HOSTILE]),
            event(3, type="agent_started", generation=HOSTILE),
            event(4, type="context_epoch_started"),
            event(5, type=HOSTILE, occurredAt=HOSTILE),
            event(6, type="agent_from_the_future"),
        ]
    )
    done = run("events", "--state-dir", tmp_path)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), done.stderr) == (0, 6, "")
    assert set(re.findall(r"[^\x20-\x7e]", done.stdout)) == {"\n"}
    assert [line.endswith("a  its values make no sense") for line in lines] == [
        *(False, True, True, True, False, False)
    ]
    assert lines[5].endswith("  agent_from_the_future      a")
    done = run("events", "--json", "--state-dir", tmp_path)
    assert set(re.findall(r"[^\x20-\x7e]", done.stdout)) == {"\n"}
    assert len(done.stdout.splitlines()) == 6


def following(directory, *arguments):
    """`ultramon events --follow` with its output in a pipe."""
    return subprocess.Popen(
        [PROGRAM, "events", "--follow", "--state-dir", str(directory), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
    )


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_following_shows_events_as_they_are_stored(tmp_path, agent, arguments):
    """From the first, in a directory that does not exist yet, until Ctrl-C."""
    with following(tmp_path, *arguments) as process:
        with agent("scout-1") as scout:
            assert "agent_started" in process.stdout.readline()
            scout.report_usage(input_tokens=750)
            assert "warning" in process.stdout.readline()
            scout.report_usage(input_tokens=900)
            assert "critical" in process.stdout.readline()
        assert "completed" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, *rest) == (0, "", "")


def test_following_from_now_on_leaves_the_past_out(tmp_path, agent, backend):
    """`--since 0s` is how one says so, and an agent may be awaited by its id."""
    backend.append_events([event(number) for number in range(3)])
    with following(tmp_path, "--since", "0s", "--agent", "scout-1") as process:
        assert process.stderr.readline() == "no agent scout-1 yet\n"
        with agent("scribe"), agent("scout-1"):
            assert process.stdout.readline().endswith("agent_started              scout-1\n")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0


def test_following_ends_when_nobody_reads_any_more(tmp_path, backend):
    """It notices a closed pipe even when nothing happens."""
    backend.append_events([event(0)])
    with following(tmp_path) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(PATIENCE_SECONDS) == 0


def test_whatever_was_stored_can_be_asked_for(tmp_path, lives):
    """Every type in the journal is one that --type takes, and brings itself only."""
    stored = set(types(tmp_path))
    assert len(stored) == 5
    assert stored <= set(EVENT_TYPES)
    for kind in stored:
        assert set(types(tmp_path, "--type", kind)) == {kind}
