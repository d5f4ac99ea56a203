"""When an alert comes, and when it does not: the sequences, the session meant, the data taken."""

import json
import sys

import pytest
from helpers import DATA
from helpers.alert_project import SESSION, Project, reading, store_agent

from ultramon import AlertConfig, alerting, check_and_alert_context, check_context
from ultramon.alerts import AlertOutcome
from ultramon.system.timestamps import format_time
from ultramon.testing import FakeClock

SEQUENCES = json.loads((DATA / "alerts.json").read_text())


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A working directory without settings."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def project(tmp_path, clock):
    return Project(tmp_path / "project", clock)


# --- once per upward crossing


@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence["what"])
def test_a_sequence_of_readings_alerts_as_it_should(sequence, project, clock):
    """Each step is a reading, what it must lead to, and optionally how long after and how old."""
    for percentage, expected, *more in sequence["steps"]:
        after_seconds, age = more + [0, ""][len(more) :]
        clock.advance(after_seconds)
        project.write(percentage, at=clock.now() - (10 if age == "old" else 0))
        outcome, text = project.alert(sequence.get("config"))
        assert bool(outcome) == outcome.alerted == (expected is not None), percentage
        assert bool(text) == outcome.alerted
        if expected:
            assert outcome.status == expected
            assert f"[CONTEXT ALERT] {expected.upper()}: " in text
    assert project.remembered() == sequence["remembered"]


def test_an_outcome_says_what_was_found(project):
    """Status, percentage, tokens, limit, action and the file, with and without an alert."""
    project.write(87)
    for alerted in (True, False):
        outcome, _ = project.alert()
        assert isinstance(outcome, AlertOutcome)
        assert (outcome.alerted, outcome.status, outcome.percentage) == (alerted, "caution", 87.0)
        assert (outcome.tokens, outcome.limit) == (174_000, 200_000)
        assert outcome.action.startswith("finish what is in hand")
        assert (outcome.source, outcome.session) == (str(project.file()), SESSION)
        assert outcome.reason == ""
        assert f"alerted={alerted}, " in repr(outcome)


def test_an_alert_is_two_plain_lines_where_nobody_looks(project):
    """As the design has it; numbers whole, percentages over 100 as they are."""
    project.write(87)
    _, text = project.alert()
    assert text == (
        "[CONTEXT ALERT] CAUTION: 87% (174000/200000 tokens); caution is 85 % of 200k and more\n"
        "Action: finish what is in hand, then write down what is done, what is left, what comes"
        " next\n"
    )
    window = {"percentage": 180.9, "currentTokens": 999_999_999, "maxTokens": 1_000_000_000}
    project.write(0, contextWindow=window)
    assert "EMERGENCY: 180% (999999999/1000000000 tokens)" in project.alert()[1]
    project.write(0, contextWindow={"percentage": 89.999})
    assert "CAUTION: 89%; caution is 85 % and more\n" in project.alert(force=True)[1]


def test_two_sessions_of_a_project_do_not_mute_each_other(project):
    """Each has its reading and its memory."""
    project.write(72, "a")
    project.write(87, "b")
    assert project.alert(session="a")[0].status == "warning"
    assert project.alert(session="b")[0].alerted
    assert not project.alert(session="a")[0].alerted
    project.write(92, "a")
    assert project.alert(session="a")[0].status == "critical"
    assert not project.alert(session="b")[0].alerted
    assert (project.remembered("a"), project.remembered("b")) == ("critical", "caution")


def test_a_memory_that_another_tool_wrote_counts(project):
    """The file holds the status alone, as a tool of the project leaves it."""
    memory = project.path / f".context-last-alert-{SESSION}"
    project.write(87)
    memory.write_text("caution")
    assert not project.alert()[0].alerted
    memory.write_text("warning\n")
    assert project.alert()[0].alerted
    for text in ("stale", "no status", ""):
        memory.write_text(text)
        assert project.alert()[0].alerted, text
    assert memory.read_text() == "caution\n"


def test_forced_alerts_come_whatever_was_said(project):
    """Below every threshold, in the quiet period, for other commands; not when it is off."""
    project.write(45)
    quiet = {"quiet_seconds": 600, "commands": ["complete"], "minimum_status": "emergency"}
    for _ in range(2):
        outcome, text = project.alert(quiet, force=True, command="list")
        assert (outcome.alerted, outcome.status) == (True, "ok")
        assert text.startswith("[CONTEXT ALERT] OK: 45% (90000/200000 tokens)\n")
    assert not project.alert({"enabled": False}, force=True)[0].alerted
    project.write(72)
    assert project.alert(force=True)[0].alerted
    assert not project.alert()[0].alerted


@pytest.mark.parametrize(
    ("commands", "command", "alerted"),
    [
        ([], "list", True),
        ([], None, True),
        (["complete", "update"], "complete", True),
        (["complete", "update"], "list", False),
        (["complete", "update"], None, True),
    ],
)
def test_only_chosen_commands_alert(project, commands, command, alerted):
    """An empty list means all; a call that names no command is its own choice."""
    project.write(72)
    outcome, _ = project.alert({"commands": commands}, command=command)
    assert outcome.alerted is alerted
    assert outcome.status == ("warning" if alerted else None)


def test_every_so_many_runs_of_a_command_count_in_each_session(project):
    """The third looks; other commands and other sessions are counted on their own."""
    for session in ("a", "b"):
        project.write(72, session)
    every = {"every": {"add": 3}}

    def added(session, command="add", **more):
        return project.alert(every, session=session, command=command, **more)[0].status

    assert [added("a"), added("a"), added("b"), added("a")] == [None, None, None, "warning"]
    project.write(87, "a")
    assert [added("a"), added("a", "update"), added("a", every=1)] == [None, "caution", "caution"]
    assert [added("b"), added("b")] == [None, "warning"]


# --- which session, and which data


@pytest.mark.parametrize(
    ("given", "variable", "current", "found"),
    [
        ("a", "b", "c", "a"),
        (None, "b", "c", "b"),
        (None, "", "c", "c"),
        (None, None, "c", "c"),
        (None, None, " c \n\n", "c"),
        (None, None, "", None),
        (None, None, "\n", None),
        (None, None, None, None),
        ("", "b", "c", None),
    ],
)
def test_the_session_is_the_one_given_then_the_variable_then_the_file(
    project, monkeypatch, given, variable, current, found
):
    """Without one, or with an empty one, nothing is said."""
    for session in "abc":
        project.write(72, session)
    if variable is not None:
        monkeypatch.setenv("ULTRAMON_AGENT_ID", variable)
    if current is None:
        (project.path / ".current-session").unlink()
    else:
        project.choose(current)
    outcome, text = project.alert(session=given)
    assert (outcome.alerted, outcome.session, bool(text)) == (found is not None, found, bool(found))
    if found is None:
        assert outcome.reason == "no session"
        assert list(project.path.glob(".context-*")) == []


def test_the_agents_state_stands_above_the_projects_files(project, tmp_path, clock):
    """Then the session's own file, then the one of the whole project, then there is none."""
    common = project.path / ".context-state.json"
    common.write_text(json.dumps(reading(92, clock.now())))
    project.write(72)
    states = tmp_path / "state"
    store_agent(states, SESSION, 0.96, clock.now())
    state = states / "subagents" / f"{SESSION}.json"
    for path, status in (
        (state, "emergency"),
        (project.file(), "warning"),
        (common, "critical"),
    ):
        outcome, _ = project.alert()
        assert (outcome.source, outcome.status, outcome.alerted) == (str(path), status, True)
        path.unlink()
    outcome, text = project.alert()
    assert (outcome.alerted, outcome.status, outcome.reason, text) == (
        False,
        "stale",
        "no data",
        "",
    )


def test_the_project_directory_is_the_one_here_unless_named(tmp_path, monkeypatch, clock, capsys):
    """`.ultramon` in the working directory, else the variable, else the keyword."""
    monkeypatch.chdir(tmp_path)
    for name, percentage in ((".ultramon", 72), (".cleo", 87), ("third", 92)):
        Project(tmp_path / name, clock).write(percentage)
    assert check_and_alert_context(clock=clock).status == "warning"
    monkeypatch.setenv("ULTRAMON_ALERT_DIR", ".cleo")
    assert check_and_alert_context(clock=clock).status == "caution"
    assert check_and_alert_context(clock=clock, directory="third").status == "critical"
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("[CONTEXT ALERT]") == 3


# --- old data


@pytest.mark.parametrize(
    ("members", "age_seconds", "fresh"),
    [
        ({}, 0, True),
        ({}, 5, True),
        ({}, 5.1, False),
        ({"staleAfterMs": 5000}, 10, False),
        ({"staleAfterMs": 60_000}, 10, True),
        ({"staleAfterMs": 0}, 10, False),
        ({"staleAfterMs": "60000"}, 10, False),
        ({"heartbeatIntervalSeconds": 15}, 45, True),
        ({"heartbeatIntervalSeconds": 15}, 45.1, False),
        ({"heartbeatIntervalSeconds": True}, 10, False),
        ({}, 3600, False),
        ({}, -2, True),
        ({}, -60, False),
        ({"status": "stale"}, 0, False),
        ({"timestamp": "yesterday"}, 0, False),
        ({"timestamp": "2026-01-01"}, 0, False),
        ({"timestamp": 1_767_225_600}, 0, False),
        ({"timestamp": None}, 0, False),
        ({"timestamp": "2026-01-01T01:00:00+01:00"}, 0, True),
        ({"timestamp": "2026-01-01T00:00:00Z"}, 0, True),
        ({"timestamp": "2026-02-30T00:00:00Z"}, 0, False),
    ],
)
def test_data_are_fresh_for_as_long_as_they_say(project, clock, members, age_seconds, fresh):
    """Three of their intervals, or 5 s; no time, a wrong one and one ahead are stale."""
    project.write(72, at=clock.now() - age_seconds, **members)
    outcome, text = project.alert()
    assert outcome.alerted
    assert outcome.status == ("warning" if fresh else "stale")
    if not fresh:
        assert text.startswith("[CONTEXT ALERT] STALE: context data is stale, its ") or (
            text.startswith("[CONTEXT ALERT] STALE: context data is stale, it is ")
        )
        assert "last 72% (144000/200000 tokens)\nAction: check the integration" in text
        assert project.remembered() is None


def test_the_age_that_makes_data_stale_can_be_configured(project, clock):
    """For readings that do not say it themselves."""
    project.write(72, at=clock.now() - 30)
    assert project.alert({"stale_seconds": 60})[0].status == "warning"
    assert project.alert({"stale_seconds": 20})[0].status == "stale"


# --- looking without telling


@pytest.mark.parametrize(
    ("percentage", "status"),
    [(0, "ok"), (69.9, "ok"), (70, "warning"), (85, "caution"), (90, "critical"),
     (95, "emergency"), (120, "emergency")],
)  # fmt: skip
def test_a_check_judges_the_reading_alone(project, clock, percentage, status):
    """Whatever was said before; it remembers and writes nothing."""
    project.write(percentage)
    before = sorted(project.path.rglob("*"))
    for _ in range(2):
        outcome = check_context(directory=str(project.path), clock=clock)
        assert (outcome.status, outcome.percentage, outcome.alerted) == (status, percentage, False)
    assert sorted(project.path.rglob("*")) == before


def test_a_check_without_data_is_stale_and_says_why(project, clock, monkeypatch):
    """No session, no data, or what cannot be read."""

    def reason(**arguments):
        outcome = check_context(directory=str(project.path), clock=clock, **arguments)
        assert (outcome.status, outcome.percentage) == ("stale", None)
        return outcome.reason

    assert reason() == f"no data of {SESSION}"
    assert reason(session="") == "no session is named"
    assert reason(session="../x").startswith("agent id '../x' is not allowed")
    project.file().write_text("{")
    assert reason().startswith(f"{project.file()}: ")


# --- hooked into a tool


def test_a_block_looks_when_it_ended_well(project):
    """Also by an exit with 0; an error passes untouched, and nothing is said."""
    config = AlertConfig(directory=str(project.path))
    project.write(72)

    def alert():
        return alerting("complete", config=config, clock=project.clock)

    with pytest.raises(KeyError, match="no task"), alert() as failed:
        raise KeyError("no task")
    with pytest.raises(SystemExit), alert() as exited:
        raise SystemExit(3)
    assert failed.outcome is exited.outcome is None
    with pytest.raises(SystemExit), alert() as ended:
        raise SystemExit(0)
    assert ended.outcome.alerted
    with alert() as again:
        assert again.outcome is None
    assert (again.outcome.alerted, again.outcome.status) == (False, "warning")


def test_a_decorated_function_stays_what_it_is(project, capsys):
    """Arguments, result, name and documentation; the alert comes behind it, on stderr."""
    project.write(72)

    @alerting("add", every=2, directory=str(project.path), clock=project.clock)
    def add(name, *, parent=None):
        """Add a task."""
        sys.stdout.write(json.dumps({"name": name, "parent": parent}))
        return name

    assert (add.__name__, add.__doc__) == ("add", "Add a task.")
    assert add("a", parent="b") == "a"
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == ({"name": "a", "parent": "b"}, "")
    assert add("c") == "c"
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"name": "c", "parent": None}
    assert shown.err.startswith("[CONTEXT ALERT] WARNING: 72%")


def test_a_coroutine_function_is_awaited_before_the_look(project):
    """The decorated one is a coroutine function too."""
    import asyncio

    project.write(72)
    alert = alerting("add", config=AlertConfig(directory=str(project.path)), clock=project.clock)

    @alert
    async def add(name):
        await asyncio.sleep(0)
        assert alert.outcome is None
        return name

    assert asyncio.run(add("a")) == "a"
    assert alert.outcome.alerted


# --- times as this machine writes them


def test_the_memory_survives_a_clock_that_is_set_back(project, clock):
    """Quiet periods and stale data of a later time mute nothing for ever."""
    project.write(72)
    assert project.alert({"quiet_seconds": 600})[0].alerted
    clock.jump(-86_400)
    project.write(50)
    project.alert({"quiet_seconds": 600})
    project.write(72)
    assert project.alert({"quiet_seconds": 600})[0].alerted
    rest = json.loads((project.path / f".context-alert-{SESSION}.json").read_text())
    assert format_time(rest["alertedAt"]) == format_time(clock.now())
