"""Levels of a plan are announced once per account and period, by whichever process looks first."""

import json
import os
import time

import pytest
from helpers.looking_programs import looking_programs
from helpers.program import environment, run_process
from helpers.waiting import until

from ultramon import Fleet
from ultramon.backends.level_watch import LevelWatch
from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import ConfigurationError
from ultramon.notices.crossings import Crossing, plan_crossings
from ultramon.routing import Inbox
from ultramon.state.event_words import event_words
from ultramon.state.events import PlanEvent, parse_event
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, AccountPlan, PlanLimits, plan_limit
from ultramon.state.watched_levels import watched_at
from ultramon.testing import FakeClock

NOW = 1_795_716_000.0
ACCOUNT = "/srv/dev/.claude"
KIND = "plan_threshold_reached"


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return str(path)


@pytest.fixture
def backend(directory):
    backend = LocalBackend(directory)
    yield backend
    backend.close()


@pytest.fixture
def clock():
    return FakeClock(NOW)


def use(directory, percent, *, now=NOW, ahead=7_200, name=FIVE_HOURS, account=ACCOUNT):
    limit = plan_limit(name, percent, now + ahead, now)
    PlanLimits(directory).record("claude-code", account, [limit], now)


def announced(backend):
    return [event for event in backend.events().events if event["type"] == KIND]


def levels(backend):
    return [event["level"] for event in announced(backend)]


def watch(backend, directory, clock, source="serve", **options):
    return LevelWatch(backend, directory, source, clock=clock, **options)


def test_a_level_is_an_event_with_all_facts(backend, directory, clock):
    use(directory, 72)
    watch(backend, directory, clock).look()
    (event,) = announced(backend)
    assert event["key"] == f"plan:{ACCOUNT}:five_hour:2026-11-26T20:00:00.000Z:warning"
    assert (event["agentId"], event["run"], event["source"]) == (f"plan:{ACCOUNT}", "", "serve")
    found = parse_event(event)
    assert isinstance(found, PlanEvent)
    assert (found.limit, found.level_from, found.used_ratio) == (FIVE_HOURS, 0.7, 0.72)
    words = "warning, 72 % of five_hour used, resets 2026-11-26 20:00:00Z"
    assert event_words(event) == words


def test_a_look_without_limits_stores_nothing(directory, clock, tmp_path):
    """Not even the directory, where there is none."""
    backend = LocalBackend(str(tmp_path / "none"))
    watch(backend, str(tmp_path / "none"), clock).look()
    backend.close()
    assert not (tmp_path / "none").exists()


def test_below_its_levels_a_limit_is_not_announced(backend, directory, clock):
    use(directory, 69.9)
    assert watch(backend, directory, clock).look() == []
    assert announced(backend) == []


def test_each_level_comes_once_however_often_it_is_looked_at(backend, directory, clock):
    watching = watch(backend, directory, clock)
    for percent in (50, 70, 71, 72, 85, 90, 99):
        use(directory, percent)
        watching.look()
        watching.look()
    assert levels(backend) == ["warning", "critical"]


def test_a_jump_is_announced_at_the_highest_level_alone(backend, directory, clock):
    use(directory, 105)
    watch(backend, directory, clock).look()
    assert levels(backend) == ["critical"]


def test_another_watch_announces_nothing_again(backend, directory, clock):
    """Also not one that begins later: the key is in the store."""
    use(directory, 75)
    for source in ("serve", "web", "relay"):
        watch(backend, directory, clock, source).look()
    assert [event["source"] for event in announced(backend)] == ["serve"]


def test_the_next_period_is_announced_anew(backend, directory, clock):
    watching = watch(backend, directory, clock)
    use(directory, 75)
    watching.look()
    clock.advance(7_201)
    watching.look()
    use(directory, 71, now=clock.now(), ahead=18_000)
    watching.look()
    assert levels(backend) == ["warning", "warning"]


def test_limits_and_accounts_are_announced_each(backend, directory, clock):
    use(directory, 75)
    use(directory, 86, name=SEVEN_DAYS, ahead=400_000)
    use(directory, 71, account="/srv/dev/.claude-work")
    watch(backend, directory, clock).look()
    assert sorted((one["limit"], one["level"]) for one in announced(backend)) == [
        ("five_hour", "warning"), ("five_hour", "warning"), ("seven_day", "critical"),
    ]  # fmt: skip


def test_a_message_goes_to_the_one_who_is_named_and_to_no_agent(
    backend, directory, clock, monkeypatch, tmp_path
):
    config = tmp_path / "own.toml"
    config.write_text('[plan]\nlevels = [50, 60]\nnotify = "ops"\n')
    monkeypatch.setenv("ULTRAMON_CONFIG", str(config))
    use(directory, 55)
    for source in ("serve", "web"):
        watch(backend, directory, clock, source).look()
    inbox = Inbox("ops", backend=backend, clock=clock)
    (notice,) = inbox.receive()
    assert notice.text == (
        f"{ACCOUNT}: 55 % of the five-hour limit is used (warning, from 50 %); it resets at"
        " 2026-11-26 20:00Z."
    )
    assert inbox.acknowledge(notice)
    watch(backend, directory, clock, "later").look()
    assert inbox.receive() == []


def test_a_variable_outranks_the_file(backend, directory, clock, monkeypatch):
    monkeypatch.setenv("ULTRAMON_PLAN_LEVELS", "20, 30")
    use(directory, 25)
    watch(backend, directory, clock).look()
    assert levels(backend) == ["warning"]


@pytest.mark.parametrize("wrong", ["70", "85,70", "0,50", "70,101", "a,b", "70,85,90"])
def test_levels_that_do_not_rise_are_refused(backend, directory, monkeypatch, wrong):
    monkeypatch.setenv("ULTRAMON_PLAN_LEVELS", wrong)
    with pytest.raises(ConfigurationError, match="ULTRAMON_PLAN_LEVELS"):
        LevelWatch(backend, directory, "serve")


def test_what_else_is_read_is_announced_by_its_own_key(backend, directory, clock):
    """Such as a budget: the same rule for everything that agents share."""
    facts = {"budget": "team", "usedUsd": 18.0, "limitUsd": 20.0}
    crossing = Crossing(
        "budget", "team", "team", "2026-11-26", "critical", "…", facts, NOW + 60
    )  # fmt: skip
    watching = watch(backend, directory, clock, readings=[lambda now: [crossing]])
    watching.look()
    watching.look()
    (event,) = backend.events().events
    assert event["key"] == "budget:team:2026-11-26:critical"
    assert (event["type"], event["usedUsd"]) == ("budget_threshold_reached", 18.0)


@pytest.mark.parametrize("run", [None, "audit"])
def test_no_fleet_takes_it_for_an_event_of_its_run(backend, directory, clock, caplog, run):
    use(directory, 75)
    watch(backend, directory, clock).look()
    seen = []
    fleet = Fleet(run, backend=backend, clock=clock, otel=False)
    for name in ("started", "ended", "lost", "prepare_handoff"):
        fleet.on(name)(seen.append)
    fleet.poll()
    fleet.close()
    assert (seen, caplog.messages) == ([], [])


def test_a_percent_is_rounded_down():
    """As everywhere: 69.99 is not yet a level of 70."""
    limits = [plan_limit(FIVE_HOURS, 69.99, NOW + 60, NOW)]
    assert list(plan_crossings([AccountPlan("codex", "/a", limits)], (70, 85))) == []


def test_two_watches_and_a_page_in_processes_of_their_own_announce_it_once(directory):
    """Real programs on one directory; each reads the limit by itself."""
    use(directory, 75, now=time.time())
    environ = environment(ULTRAMON_STATE_DIR=directory)
    backend = LocalBackend(directory)
    with looking_programs(environ) as running:
        for process in running:
            until(lambda: announced(backend), process)
        before = watched_at(directory)
        until(lambda: watched_at(directory) > before, running[0])
        use(directory, 90, now=time.time())
        until(lambda: len(announced(backend)) > 1, running[0])
    assert levels(backend) == ["warning", "critical"]
    shown = run_process("events", "--json", ULTRAMON_STATE_DIR=directory).stdout.splitlines()
    assert [json.loads(line)["limit"] for line in shown] == [FIVE_HOURS, FIVE_HOURS]
    backend.close()


def test_the_doctor_says_that_no_process_looks(directory):
    use(directory, 75, now=time.time())
    found = _doctor(directory)
    assert "no process announces levels" in found
    assert f"{ACCOUNT} five_hour 75 %" in found
    backend = LocalBackend(directory)
    LevelWatch(backend, directory, "serve").look()
    backend.close()
    assert "levels are announced" in _doctor(directory)
    (name,) = [one for one in os.listdir(PlanLimits(directory).folder) if one.endswith(".json")]
    (path,) = [os.path.join(PlanLimits(directory).folder, name)]
    with open(path, "w") as file:
        file.write("{")
    assert name in _doctor(directory)


def _doctor(directory):
    return run_process("doctor", "--json", ULTRAMON_STATE_DIR=directory).stdout
