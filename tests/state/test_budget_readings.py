"""What is stored about budgets is read as it was written, or not at all."""

import json

import pytest

from ultramon.notices.budgets import budget_crossings
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope, shown_of
from ultramon.system.files import replace_file
from ultramon.system.timestamps import parse_time

NOW = parse_time("2026-11-26T12:00:00Z")
HUGE = 10**400
"""More than a float holds."""
ODD = [
    None, True, [], {}, "", "x", "inf", "1e400", "\ud800", -1, 0, 1e-300, 1.5, 1e308, HUGE,
    [HUGE], [None], ["80", "100"], [80], [80, 100, 120], {"a": 1},
]  # fmt: skip


def reading(unit="usd", **scope):
    return BudgetReading(
        "daily",
        Scope(**scope),
        period="day",
        period_key="2026-11-26",
        starts_at=NOW - 43_200,
        ends_at=NOW + 43_200,
        unit=unit,
        limit=20.0,
        spent=18.0,
        is_whole=True,
        levels=(80, 100),
        level="warning",
        empties_at=NOW + 600,
        is_enforced=True,
        measured_at=NOW,
    )


@pytest.fixture
def stored(tmp_path):
    return BudgetReadings(str(tmp_path / "state"))


@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_what_is_stored_is_read_again(stored, unit):
    scope = {"project": "/srv/shop", "run": "audit", "agent": "scout-*"}
    first = [reading(unit), reading(unit, **scope)]
    stored.write(first)
    assert [one.to_json() for one in stored.read(NOW)] == [one.to_json() for one in first]


@pytest.mark.parametrize("unit", ["usd", "tokens"])
def test_a_damaged_member_stops_no_face(stored, unit):
    """Either the reading is left out, or all that is made of it can be made."""
    stored.write([])
    whole = reading(unit, project="/srv/shop").to_json()
    damaged = [whole | {name: value} for name in whole for value in ODD]
    for name in ("project", "run", "agent"):
        damaged += [whole | {"scope": {name: value}} for value in ODD]
    for one in damaged:
        value = {"schema": 1, "budgets": [one]}
        replace_file(stored.path, json.dumps(value).encode())
        found = stored.read(NOW)
        shown_of(found, "/srv/shop/web", "audit", ["scout-1", None])
        for read in found:
            assert read.level is None or isinstance(read.level, str)
            assert isinstance(read.words(NOW, utc=True), str)
            assert json.dumps(read.to_json())
        for crossing in budget_crossings(found, NOW, {}):
            assert crossing.event(NOW, "web")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"null", b'{"budgets":1}', b"[" * 9_000])
def test_a_file_that_is_none_holds_no_readings(stored, content):
    stored.write([])
    replace_file(stored.path, content)
    assert stored.read(NOW) == []
