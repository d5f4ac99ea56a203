"""What each day cost: no token twice, and none lost when a transcript is."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time

import pytest
from helpers import ROOT
from helpers.opencode_session import plant
from helpers.planted_transcripts import (
    OTHER,
    SESSION,
    Machine,
    boundary,
    example_machine,
    used,
)
from helpers.program import CAPTURES, run, run_process
from helpers.recount import BY_HOST

from ultramon.cli.views.period_table import print_periods
from ultramon.prices.price_list import PriceList
from ultramon.recordings.clients import client_files
from ultramon.recordings.daily_sums import FILE_NAME, DailySums, key_of
from ultramon.recordings.index import Summarized, TranscriptIndex
from ultramon.state.budget_readings import DAY, MONTH, WEEK
from ultramon.testing import FakeClock

NOW = 1_795_400_000.0  # 2026-11-23
PRICES = PriceList(clock=FakeClock(NOW))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def sums(tmp_path):
    with DailySums(str(tmp_path / "state" / FILE_NAME)) as found:
        yield found


def take(machine, sums):
    """Read what is there now into the sums, as a report does."""
    copied = sums.copied()
    with TranscriptIndex(None) as index:
        read = list(index.summarize(client_files(machine.environ)))
        found = list(index.count_copies_once(read, (), lambda one: copied.get(key_of(one), 0)))
    sums.take(one for one in found if isinstance(one, Summarized))
    assert sums.problem is None


def report(sums, by=DAY, **options):
    return sums.report(by, PRICES, now=NOW, **options)


def opus(name, tokens, day, output=0):
    entry = used(name, tokens, output=output, at=f"2026-11-{day:02d}T12:00:00Z")
    entry["message"]["model"] = "claude-opus-4-5"
    return entry


def spent(found):
    return found.spent.input_tokens


def test_days_have_their_own_sums_and_one_for_all(machine, sums):
    """A session of two days is in both, and counts once in the sum."""
    machine.write(SESSION, opus("m1", 100_000, 20), opus("m2", 110_000, 21))
    machine.write(SESSION, opus("s1", 50_000, 21), agent="a1")
    machine.write(OTHER, opus("o1", 10_000, 21), project="/home/dev/b")
    take(machine, sums)
    found = report(sums)
    assert [(f"{one.start}", one.sessions, one.subagents) for one in found.periods] == [
        ("2026-11-21", 2, 1),
        ("2026-11-20", 1, 0),
    ]
    assert [one.cost_usd for one in found.periods] == pytest.approx([0.85, 0.5])
    assert (found.sessions, found.cost_usd) == (2, pytest.approx(1.35))
    by_project = {one.name: one.cost_usd for one in found.periods[0].by_project}
    assert by_project == pytest.approx({"/home/dev/shop": 0.8, "/home/dev/b": 0.05})
    assert [(one.name, one.sessions) for one in found.periods[0].by_host] == [("claude-code", 2)]


def test_weeks_begin_on_monday_and_months_on_the_first(machine, sums):
    """The 22nd of November 2026 is a Sunday."""
    machine.write(SESSION, *(opus(f"m{day}", 50_000 + day, day) for day in (1, 22, 23)))
    take(machine, sums)
    assert [(f"{one.start}", f"{one.end}") for one in report(sums, WEEK).periods] == [
        ("2026-11-23", "2026-11-29"),
        ("2026-11-16", "2026-11-22"),
        ("2026-10-26", "2026-11-01"),
    ]
    (month,) = report(sums, MONTH).periods
    assert (f"{month.start}", f"{month.end}") == ("2026-11-01", "2026-11-30")
    assert [f"{one.start}" for one in report(sums, days=2).periods] == ["2026-11-23", "2026-11-22"]


def test_a_transcript_that_grew_replaces_its_part(machine, sums):
    """Reading it ten times is reading it once."""
    machine.write(SESSION, opus("m1", 10_000, 20))
    for _ in range(3):
        take(machine, sums)
    assert spent(report(sums)) == 10_000
    machine.write(SESSION, opus("m2", 12_000, 20))
    take(machine, sums)
    assert (spent(report(sums)), report(sums).sessions) == (22_000, 1)


def test_a_transcript_that_is_gone_keeps_its_part(machine, sums):
    """Clients delete their files after a while."""
    gone = machine.write(SESSION, opus("m1", 10_000, 20), boundary(), opus("m2", 3_000, 21))
    take(machine, sums)
    before = report(sums)
    gone.unlink()
    take(machine, sums)
    assert report(sums) == before
    machine.write(OTHER, opus("o1", 500, 21))
    take(machine, sums)
    assert spent(report(sums)) == 13_500
    assert report(sums).compactions == 1


def test_a_copy_whose_source_is_gone_is_still_one(machine, sums):
    """What was counted with the source is not counted again with the fork, which may grow."""
    source = machine.write(SESSION, opus("m1", 10_000, 20), opus("m2", 11_000, 20))
    fork = [opus("m1", 10_000, 20), opus("m2", 11_000, 20), opus("m3", 12_000, 21)]
    machine.write(OTHER, *fork)
    take(machine, sums)
    assert spent(report(sums)) == 33_000
    source.unlink()
    take(machine, sums)
    assert spent(report(sums)) == 33_000
    machine.write(OTHER, opus("m4", 13_000, 21))
    take(machine, sums)
    assert spent(report(sums)) == 46_000


def test_of_two_files_of_one_agent_the_longer_one_counts(machine, sums):
    """Also when the longer one is gone by the time that the shorter one is read."""
    machine.write(SESSION, opus("m1", 10_000, 20), opus("m2", 11_000, 21))
    take(machine, sums)
    shutil.rmtree(machine.projects)
    machine.write(SESSION, opus("m1", 10_000, 20), project="/home/dev/elsewhere")
    take(machine, sums)
    assert spent(report(sums)) == 21_000


def test_days_are_those_of_the_machines_time_zone(machine, tmp_path, monkeypatch):
    """Noon in London is the next day in Auckland."""
    machine.write(SESSION, opus("m1", 10_000, 20))
    try:
        for zone, day in (("Europe/London", "2026-11-20"), ("Pacific/Auckland", "2026-11-21")):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            with DailySums(None) as sums:
                take(machine, sums)
                (found,) = report(sums).periods
                assert f"{found.start}" == day
                assert report(sums).time_zone == time.tzname[zone.startswith("Pacific")]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_recorded_sessions_have_the_sums_of_an_independent_count(sums):
    """All hosts, over every kind of token."""
    paths = sorted(CAPTURES.rglob("*.jsonl"))
    with TranscriptIndex(None) as index:
        read = [one for one in index.summarize(map(str, paths)) if isinstance(one, Summarized)]
    sums.take(read)
    # Of two files of one session the longer one counts.
    longest = {key_of(one.summary): one for one in sorted(read, key=lambda o: o.summary.ended_at)}
    wanted = [0] * 5
    for one in longest.values():
        for counts in BY_HOST[one.summary.host](type(paths[0])(one.path)).values():
            wanted = [sum(pair) for pair in zip(wanted, counts, strict=True)]
    assert list(report(sums).spent.model_dump().values()) == wanted
    assert sum(wanted) > 1_000_000


def test_a_damaged_or_newer_file_is_left_as_it_is(machine, tmp_path):
    """What is kept for ever is not made anew; the report is of what is there."""
    machine.write(SESSION, opus("m1", 10_000, 20))
    for content, words in ((b"no database at all" * 99, "not a database"), (None, "newer version")):
        path = tmp_path / FILE_NAME
        path.unlink(missing_ok=True)
        if content is None:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()
        else:
            path.write_bytes(content)
        before = path.read_bytes()
        with DailySums(str(path)) as sums:
            assert words in sums.problem
            sums.take([])
            assert report(sums).periods == ()
        assert path.read_bytes() == before


def test_damaged_pages_behind_the_header_are_found_when_it_is_opened(machine, tmp_path):
    """As after a power cut: the report is of what is there, and the file stays."""
    state = tmp_path / "state"
    environ = machine.environ | {"ULTRAMON_STATE_DIR": str(state)}
    for day in range(1, 29):
        machine.write(f"{SESSION[:-2]}{day:02d}", opus(f"m{day}", 10_000, day))
    assert run("report", "--by", "day", **environ).returncode == 0
    path = state / FILE_NAME
    content = path.read_bytes()
    damaged = content[:4096] + b"\x55" * (len(content) - 4096)
    path.write_bytes(damaged)
    for arguments in ((), ("--by", "day")):
        done = run("report", *arguments, **environ)
        assert done.returncode == 0, done.stderr
        assert "28 sessions" in done.stdout
        assert f"not kept: {path}: " in done.stderr
    assert path.read_bytes() == damaged


@pytest.mark.parametrize(
    ("at", "zone"),
    [
        ("0001-01-01T00:00:00Z", "America/Los_Angeles"),
        ("1969-12-31T23:59:59Z", "UTC"),
        ("9999-12-31T23:59:59Z", "Asia/Tokyo"),
        ("9999-12-31T23:59:59Z", "America/Los_Angeles"),
    ],
)
def test_a_reply_at_a_time_that_cannot_be_is_of_an_unknown_day(machine, at, zone):
    """It costs what it costs."""
    environ = machine.environ | {"TZ": zone}
    machine.write(SESSION, used("m1", 10_000, at=at))
    machine.write(OTHER, used("m2", 20_000, at="2026-11-21T12:00:00Z"))
    done = run_process("report", "--json", **environ)
    assert done.returncode == 0, done.stderr
    days = {one["day"]: one["spent"]["inputTokens"] for one in json.loads(done.stdout)["byDay"]}
    assert days == {None: 10_000, "2026-11-21": 20_000}
    done = run_process("report", "--by", "day", "--json", **environ)
    assert done.returncode == 0, done.stderr
    (period,) = json.loads(done.stdout)["periods"]
    assert period["spent"]["inputTokens"] == 20_000


def test_a_reply_of_a_far_year_in_a_database_is_of_an_unknown_day(machine):
    """OpenCode stores numbers: the largest that its reader takes is of the year 287396."""
    path = machine.root / "opencode" / "opencode.db"
    plant(path, "subagents")
    with sqlite3.connect(path) as database:
        changed = database.execute(
            "UPDATE message SET data = json_set(data, '$.time.completed', ?)"
            " WHERE json_extract(data, '$.time.completed') IS NOT NULL",
            ((1 << 53) - 1,),
        )
        assert changed.rowcount
    database.close()
    environ = machine.environ | {"XDG_DATA_HOME": str(machine.root)}
    done = run("report", "--json", **environ)
    assert done.returncode == 0, done.stderr
    assert [one["day"] for one in json.loads(done.stdout)["byDay"]] == [None]


def test_the_sums_are_private(machine, tmp_path):
    """They name projects."""
    path = tmp_path / "state" / FILE_NAME
    with DailySums(str(path)) as sums:
        take(machine, sums)
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_command_lists_days_of_transcripts_that_are_gone(machine):
    """On the screen and as JSON, with costs at the top and in every row."""
    gone = machine.write(SESSION, opus("m1", 100_000, 20))
    machine.write(OTHER, opus("o1", 200_000, 21), used("o2", 1_000, at="2026-11-21T13:00:00Z"))
    environ = machine.environ | {"TZ": "UTC"}
    assert run("report", "--by", "day", **environ).returncode == 0
    gone.unlink()
    done = run("report", "--by", "day", COLUMNS="80", **environ)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("2 days · 2 sessions · prices of ")
    assert lines[2].split()[:3] == ["2026-11-21", "1", "$1.00"] or "≥" in lines[2]
    assert lines[3].split()[:3] == ["2026-11-20", "1", "$0.50"]
    document = json.loads(run("report", "--by", "month", "--json", **environ).stdout)
    (month,) = document["periods"]
    assert month["costUsd"] == document["costUsd"]
    assert {"costUsd", "unpricedSessions"} <= set(month["byProject"][0])
    assert (document["by"], document["timeZone"]) == ("month", "UTC")
    hidden = run("report", "--by", "day", "--json", "--anonymous", **environ).stdout
    assert "shop" not in hidden
    named = run("report", "--by", "day", "--json", machine.projects, **environ).stdout
    assert len(json.loads(named)["periods"]) == 1


def test_a_page_and_periods_do_not_go_together(machine):
    """The usage error says what does."""
    done = run("report", "--by", "day", "--html", "x.html", **machine.environ)
    assert done.returncode == 2
    assert "--by writes no page" in done.stderr


def test_the_page_of_the_documentation_shows_the_real_table(tmp_path, capsys, monkeypatch):
    """What docs/report.md shows is what a terminal of 80 columns shows."""
    monkeypatch.setenv("COLUMNS", "80")
    environ = example_machine(tmp_path).environ
    with TranscriptIndex(None) as index, DailySums(None) as sums:
        sums.take(index.summarize(client_files(environ)))
        print_periods(report(sums, WEEK))
    shown = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    assert f"```text\n{shown}```" in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
