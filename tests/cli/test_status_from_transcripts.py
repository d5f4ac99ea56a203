"""`ultramon status --from-transcripts`: agents of hosts that report nothing."""

import json
import shutil
import sqlite3

import pytest
from helpers import DATA
from helpers.opencode_session import plant, session_id
from helpers.program import run

from ultramon.cli.exit_codes import ExitCode


@pytest.fixture
def home(tmp_path):
    """A user of Kilo and Kimi CLI; returns the variables."""
    plant(tmp_path / "kilo" / "kilo.db", "compaction", recorded=DATA / "kilo")
    shutil.copytree(DATA / "kimi" / "cli", tmp_path / ".kimi")
    names = ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
    return dict.fromkeys(names, str(tmp_path))


def test_agents_are_listed_by_their_last_reply(home):
    """The fullest first; what a transcript does not say is unknown, never a number."""
    done = run("status", "--from-transcripts", "--all", **home)
    assert (done.returncode, done.stderr) == (0, "")
    head, first, *_, last = [line.split() for line in done.stdout.splitlines()]
    assert head == ["project", "host", "model", "used", "of", "usage", "compacted", "last", "id"]
    assert first[:7] == ["project", "kimi", "?", "60k", "100k", "60", "%"]
    assert last[:7] == ["project", "kilo", "fake-1", "9.5k", "?", "?", "1x"]


def test_json_names_what_is_known(home, tmp_path):
    """Of one agent, by the beginning of its id."""
    done = run("status", "--from-transcripts", "--all", "--json", "b453007b", **home)
    (one,) = json.loads(done.stdout)["agents"]
    assert one.pop("transcriptPath").startswith(str(tmp_path / ".kimi"))
    assert one == {
        "agentId": "b453007b-4964-4543-bc8b-d2523596ad9a",
        "host": "kimi",
        "project": "/home/user/project",
        "model": None,
        "currentTokens": 9_533,
        "contextLimit": 100_000,
        "usageRatio": 0.09533,
        "compactions": 1,
        "lastRecordAt": "2026-11-27T01:04:31.015255Z",
    }


def test_a_window_behind_a_compaction_is_unknown_until_the_next_reply(home, tmp_path):
    """The last number is one of a window that is gone."""
    path = tmp_path / "kilo" / "kilo.db"
    with sqlite3.connect(path) as database:
        query = "SELECT time_created FROM message WHERE data LIKE '%\"summary\":true%'"
        (at,) = database.execute(query).fetchone()
        database.execute("DELETE FROM message WHERE time_created > ?", (at,))
    database.close()
    name = session_id(path)
    done = run("status", "--from-transcripts", "--all", "--json", name, **home)
    (one,) = json.loads(done.stdout)["agents"]
    assert (one["currentTokens"], one["usageRatio"], one["compactions"]) == (None, None, 1)


def test_what_cannot_be_read_is_named(home, tmp_path):
    """Beside what can."""
    with sqlite3.connect(tmp_path / "kilo" / "kilo-next.db") as database:
        database.execute("CREATE TABLE conversation (id)")
    database.close()
    done = run("status", "--from-transcripts", "--all", **home)
    assert "its format is no known one of kilo: nothing was read" in done.stderr
    assert "kimi" in done.stdout


def test_choices_that_mean_nothing_here_are_refused(home):
    """A transcript names no run, and an id that no transcript has is an error."""
    for words in (("--run", "nightly"), ("nobody",)):
        done = run("status", "--from-transcripts", "--all", *words, **home)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")


def test_an_agent_without_a_state_is_explained_by_its_transcript(home):
    """As the last record leaves it; it says that no hook reports it."""
    done = run("explain", "b453007b", **home)
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 %: 9,500 of 100,000 tokens" in done.stdout
    assert "no hook reports it: this is its transcript" in done.stdout
    done = run("explain", "ses_de58730b5", **home)
    assert "9,500 of an unknown limit" in done.stdout
    assert run("explain", "nobody", **home).returncode == ExitCode.NOT_FOUND


def test_what_fills_a_window_is_read_of_the_transcript(tmp_path):
    """As of an agent that hooks report: images and thinking, and all of them are the reading."""
    place = tmp_path / "projects" / "-srv-shop" / "a67c7f34-8c70-4a94-afb4-d6f70fddfc78.jsonl"
    place.parent.mkdir(parents=True)
    shutil.copy(DATA / "images" / "claude_code.jsonl", place)
    names = ("HOME", "CLAUDE_CONFIG_DIR", "XDG_CACHE_HOME")
    home = dict.fromkeys(names, str(tmp_path))
    document = json.loads(run("explain", "a67c7f34", "--json", **home).stdout)
    filled = document["filledBy"]
    assert (filled["thinking"], filled["images"]) == (1_000, 5_602)
    assert sum(filled.values()) == pytest.approx(31_042, abs=len(filled))
    assert document["provenance"]["thinking"] == "measured"


def test_without_transcripts_it_says_so(tmp_path):
    """Instead of an empty table."""
    done = run("status", "--from-transcripts", HOME=str(tmp_path), XDG_DATA_HOME=str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "no transcripts of the last day\n")


def test_a_report_sees_what_a_database_got_within_the_hour(home, tmp_path):
    """A result that is kept is one of the same files, a database and its log of writes too."""
    first = json.loads(run("report", "--days", "9999", "--json", **home).stdout)
    plant(tmp_path / "kilo" / "kilo.db", "subagents", recorded=DATA / "kilo")
    second = json.loads(run("report", "--days", "9999", "--json", **home).stdout)
    assert second["sessions"] == first["sessions"] + 1
    with sqlite3.connect(tmp_path / "kilo" / "kilo.db") as database:
        database.execute("UPDATE message SET data = replace(data, ':30000,', ':31000,')")
        database.execute("UPDATE message SET time_updated = time_updated + 1")
        database.commit()
        third = json.loads(run("report", "--days", "9999", "--json", **home).stdout)
    database.close()
    assert third["spent"] != second["spent"]
