"""Budgets: what the settings may say, when periods begin, which levels are reached."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from ultramon.errors import ConfigurationError
from ultramon.notices.budgets import (
    MOST_BUDGETS,
    Period,
    Spent,
    budget_crossings,
    period_of,
    read_budgets,
    reading_of,
)
from ultramon.state.budget_readings import Scope

HOUR = 3_600.0


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """Write a real settings file, and return its path."""

    def write(text):
        path = tmp_path / "own.toml"
        path.write_text(text)
        monkeypatch.setenv("ULTRAMON_CONFIG", str(path))
        return str(path)

    return write


@pytest.fixture
def budget(configure):
    def read(text):
        configure(f"[budgets.daily]\n{text}\n")
        (found,) = read_budgets()
        return found

    return read


def at(text, zone="UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def spent(usd=0.0, tokens=0, *, first_at=None, quarters=0, is_priced=True, is_dated=True):
    return Spent(usd, tokens, is_priced, is_dated, first_at, quarters)


def test_a_budget_has_defaults(budget):
    found = budget("limit_usd = 20")
    assert (found.limit_usd, found.limit_tokens, found.period) == (20.0, None, "day")
    assert (found.levels, found.scope, found.enforce) == ((80, 100), Scope(), False)
    assert (found.notify, found.notify_agents, found.time_zone) == (None, False, None)


def test_all_settings_of_a_budget(budget):
    found = budget(
        'limit_tokens = 5_000_000\nperiod = "week"\ntime_zone = "Asia/Kathmandu"\n'
        'project = "~/shop/"\nrun = "audit"\nagent = "scout-*"\nlevels = [50, 90]\n'
        'notify = "ops"\nnotify_agents = true\nenforce = true\nprices = "/srv/prices.toml"'
    )
    assert found.limit == 5_000_000
    assert found.project == os.path.expanduser("~/shop")
    assert (found.levels, found.notify, found.enforce) == ((50, 90), "ops", True)


def test_several_budgets_keep_their_order(configure):
    configure("[budgets]\nteam.limit_usd = 5\nall.limit_usd = 20\n")
    assert [one.name for one in read_budgets()] == ["team", "all"]


def test_without_the_table_there_is_none(configure):
    configure("")
    assert read_budgets() == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("limit_usd = 0", "budgets.daily.limit_usd=0 (from {path}) is not allowed: must be"
         " a number above 0, at most 1,000,000"),
        ("limit_usd = inf", "budgets.daily.limit_usd=inf"),
        pytest.param(f"limit_usd = 1{'0' * 400}", "daily.limit_usd=1000", id="a huge limit"),
        ("limit_usd = nan", "budgets.daily.limit_usd=nan"),
        ("limit_usd = '20'", "budgets.daily.limit_usd='20'"),
        ("limit_tokens = 1.5", "must be a whole number from 1 to"),
        ("", "must be one of limit_usd and limit_tokens"),
        ("limit_usd = 1\nlimit_tokens = 1", "must be one of limit_usd and limit_tokens"),
        ("limit_usd = 1\nperiod = 'year'", "must be one of day, week, month, none"),
        ("limit_usd = 1\ntime_zone = 'Europe/Berlyn'", "the name of a time zone"),
        ("limit_usd = 1\ntime_zone = '../etc/passwd'", "the name of a time zone"),
        ("limit_usd = 1\nproject = 'shop'", "an absolute path, or one that begins with ~"),
        ("limit_usd = 1\nrun = 'a b'", "the name of a run"),
        ("limit_usd = 1\nlevels = [90, 80]", "two whole percents that rise"),
        ("limit_usd = 1\nlevels = [0.8, 1.0]", "two whole percents that rise"),
        ("limit_usd = 1\nnotify = '../x'", "an agent id"),
        ("limit_usd = 1\nenforce = 'yes'", "true or false"),
        ("limit_usd = 1\nenforced = true", "did you mean enforce?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_key_and_what_is_allowed(configure, text, words):
    path = configure(f"[budgets.daily]\n{text}\n")
    with pytest.raises(ConfigurationError) as caught:
        read_budgets()
    assert words.format(path=path) in str(caught.value)
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[budgets]\ndaily = 20\n", "[budgets.daily], with limit_usd or limit_tokens"),
        ('[budgets."a b"]\nlimit_usd = 1\n', "a name of 1 to 40 of"),
        ("budgets = 20\n", "must be a table"),
        ("[budget.daily]\nlimit_usd = 1\n", "did you mean budgets?"),
    ],
)
def test_a_table_that_is_none_is_refused(configure, text, words):
    path = configure(text)
    with pytest.raises(ConfigurationError) as caught:
        read_budgets()
    assert words in str(caught.value)
    assert path in str(caught.value)


def test_so_many_budgets_are_a_mistake(configure):
    configure("[budgets]\n" + "".join(f"b{n}.limit_usd = 1\n" for n in range(MOST_BUDGETS + 1)))
    with pytest.raises(ConfigurationError, match="at most 50"):
        read_budgets()


def test_a_project_that_is_not_trusted_sets_no_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ULTRAMON_CONFIG", raising=False)
    project = tmp_path / "cloned"
    project.mkdir()
    (project / "ultramon.toml").write_text("[budgets.daily]\nlimit_usd = 1\n")
    monkeypatch.chdir(project)
    assert read_budgets() == []


def test_a_day_begins_at_midnight_of_its_zone(budget):
    """In Kathmandu, 5:45 ahead, it is the next day already."""
    now = at("2026-11-26T18:30")
    found = period_of(budget('limit_usd = 1\ntime_zone = "Asia/Kathmandu"'), now)
    assert found == Period("2026-11-27", at("2026-11-26T18:15"), at("2026-11-27T18:15"))
    found = period_of(budget('limit_usd = 1\ntime_zone = "America/Los_Angeles"'), now)
    assert found == Period("2026-11-26", at("2026-11-26T08:00"), at("2026-11-27T08:00"))


def test_without_a_zone_the_machine_decides(budget, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        found = period_of(budget("limit_usd = 1"), at("2026-11-26T18:30"))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found == Period("2026-11-27", at("2026-11-26T15:00"), at("2026-11-27T15:00"))


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
def test_a_day_is_as_long_as_its_clocks_say(budget, day, hours):
    """Clocks go forward and back in Berlin."""
    found = period_of(
        budget('limit_usd = 1\ntime_zone = "Europe/Berlin"'), at(f"{day}T12:00", "Europe/Berlin")
    )
    assert found.key == day
    assert found.ends_at - found.starts_at == hours * HOUR


def test_where_clocks_skip_midnight_the_day_begins_behind_it(budget):
    """In Santiago on 6 September 2026 the time 00:00 becomes 01:00."""
    zone = "America/Santiago"
    settings = budget(f'limit_usd = 1\ntime_zone = "{zone}"')
    found = period_of(settings, at("2026-09-06T12:00", zone))
    assert datetime.fromtimestamp(found.starts_at, ZoneInfo(zone)).hour == 1
    before = period_of(settings, at("2026-09-05T12:00", zone))
    assert before.ends_at == found.starts_at


def test_weeks_months_and_no_period(budget):
    now = at("2027-01-01T12:00")
    zone = '\ntime_zone = "UTC"'
    week = period_of(budget('limit_usd = 1\nperiod = "week"' + zone), now)
    assert week == Period("2026-W53", at("2026-12-28T00:00"), at("2027-01-04T00:00"))
    month = period_of(budget('limit_usd = 1\nperiod = "month"' + zone), at("2026-02-03T04:05"))
    assert month == Period("2026-02", at("2026-02-01T00:00"), at("2026-03-01T00:00"))
    assert period_of(budget('limit_usd = 1\nperiod = "none"'), now) == Period("all", 0.0, None)


@pytest.mark.parametrize(
    ("usd", "level"), [(15.99, None), (16.0, "warning"), (19.999, "warning"), (20.0, "critical")]
)
def test_a_level_is_reached_at_its_percent_and_not_near_it(budget, usd, level):
    settings = budget("limit_usd = 20")
    now = at("2026-11-26T12:00")
    assert reading_of(settings, period_of(settings, now), spent(usd), now).level == level


NOON, NINE = at("2026-11-26T12:00"), at("2026-11-26T09:00")
DAY = Period("2026-11-26", at("2026-11-26T00:00"), at("2026-11-27T00:00"))


def test_the_forecast_follows_the_pace_since_the_first_request(budget):
    """$12 in three hours, pauses included: $8 more take two."""
    found = reading_of(budget("limit_usd = 20"), DAY, spent(12.0, first_at=NINE, quarters=5), NOON)
    assert datetime.fromtimestamp(found.empties_at, UTC).isoformat() == "2026-11-26T14:00:00+00:00"
    assert found.words(NOON, utc=True) == (
        "daily: today $12.00 of 20, 60 %, at this pace empty at 14:00Z"
    )


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (spent(12.0, first_at=NINE, quarters=2), "one burst is no pace"),
        (spent(0.0, first_at=NINE, quarters=5), "nothing was spent"),
        (spent(20.0, first_at=NINE, quarters=5), "it is used up"),
        (spent(3.0, first_at=NINE, quarters=5), "the day ends before"),
        (spent(12.0), "no time is known"),
    ],
)
def test_the_forecast_is_unknown_where_too_little_is_known(budget, given, why):
    assert reading_of(budget("limit_usd = 20"), DAY, given, NOON).empties_at is None, why


def test_what_has_no_price_makes_it_a_lower_bound(budget):
    """Then it is empty by that time at the latest."""
    given = spent(12.0, 5, first_at=NINE, quarters=5, is_priced=False)
    found = reading_of(budget("limit_usd = 20"), DAY, given, NOON)
    assert not found.is_whole
    assert found.words(NOON, utc=True) == (
        "daily: today ≥ $12.00 of 20, 60 %, at this pace empty by 14:00Z"
    )
    assert reading_of(budget("limit_tokens = 20"), DAY, given, NOON).is_whole


def test_a_level_is_a_crossing_with_a_key_and_a_sentence(budget):
    settings = budget("limit_tokens = 2_000_000")
    found = reading_of(settings, DAY, spent(tokens=1_700_000, first_at=NINE, quarters=9), NOON)
    (one,) = budget_crossings([found], NOON, {"daily": ("ops",)})
    assert one.key == "budget:daily:2026-11-26:warning"
    assert one.text == (
        "Budget daily: today 1.7M of 2.0M tokens, 85 %, at this pace empty at 12:31Z (warning,"
        " from 80 %)."
    )
    assert (one.recipients, one.ends_at) == (("ops",), DAY.ends_at)
    assert list(budget_crossings([], NOON, {})) == []
