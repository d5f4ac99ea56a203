"""The limits of a plan: one file an account, the newer reading wins, nothing outlives its reset."""

import json
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultramon.errors import StateError
from ultramon.state.plan_limits import (
    FIVE_HOURS,
    FRESH_SECONDS,
    KEPT_CORRUPT_FILES,
    LONGEST_PERIOD_SECONDS,
    SAME_PERIOD_SECONDS,
    SEVEN_DAYS,
    PlanLimit,
    PlanLimits,
    newer,
    plan_limit,
)

NOW = 1_795_716_000.0
RESET = NOW + 7_200
HOST, ACCOUNT = "claude-code", "/home/dev/.claude"


def limit(percent, *, resets_at=RESET, at=NOW, name=FIVE_HOURS):
    return plan_limit(name, percent, resets_at, at)


def record(plans, *limits, now=NOW, account=ACCOUNT):
    return plans.record(HOST, account, limits, now)


@pytest.fixture
def plans(tmp_path):
    return PlanLimits(str(tmp_path / "state"))


def files(plans):
    return sorted(path.name for path in _folder(plans).glob("*.json"))


def _folder(plans):
    return Path(plans.folder)


def test_what_was_recorded_is_read_by_every_other_reader(plans):
    record(plans, limit(62), limit(41, name=SEVEN_DAYS, resets_at=NOW + 400_000))
    (account,) = PlanLimits(plans.folder.removesuffix("/plan-limits")).accounts(NOW)
    assert (account.host, account.account) == (HOST, ACCOUNT)
    assert account.limits == [
        PlanLimit(FIVE_HOURS, 0.62, RESET, NOW),
        PlanLimit(SEVEN_DAYS, 0.41, NOW + 400_000, NOW),
    ]
    assert account.to_json()["limits"]["five_hour"]["usedRatio"] == 0.62


def test_two_accounts_of_a_host_are_two_files(plans):
    record(plans, limit(62))
    record(plans, limit(10), account="/home/dev/.claude-work")
    assert [one.limits[0].percent for one in plans.accounts(NOW)] == [62, 10]
    assert len(files(plans)) == 2


def test_an_older_reading_that_comes_later_changes_nothing(plans):
    """A session that idles draws its line again, with the numbers of its last reply."""
    record(plans, limit(62, at=NOW - 10))
    seen = record(plans, limit(40, at=NOW - 3_000), now=NOW + 5)
    assert seen.limits == [PlanLimit(FIVE_HOURS, 0.62, RESET, NOW - 10)]


def test_a_period_that_ended_is_never_written_over_the_next_one(plans):
    record(plans, limit(3, resets_at=RESET))
    record(plans, limit(99, resets_at=RESET - 18_000 + 7_300), now=NOW)
    assert plans.account(HOST, ACCOUNT, NOW).limits[0].percent == 3


def test_at_its_reset_a_limit_is_unknown_and_not_nought(plans):
    record(plans, limit(62), limit(41, name=SEVEN_DAYS, resets_at=NOW + 400_000))
    assert [one.name for one in plans.accounts(RESET)[0].limits] == [SEVEN_DAYS]
    record(plans, limit(63, name=SEVEN_DAYS, resets_at=NOW + 400_000), now=RESET)
    (path,) = _folder(plans).glob("*.json")
    assert FIVE_HOURS not in path.read_text()
    assert plans.accounts(NOW + 400_000) == []


def test_the_next_period_begins_below_the_last(plans):
    record(plans, limit(97))
    after = record(plans, limit(1, resets_at=RESET + 18_000, at=RESET + 1), now=RESET + 1)
    assert after.limits[0].percent == 1


def test_a_reset_that_is_reckoned_anew_names_the_same_period(plans):
    """The key of an announcement holds it: it must not move with every reply."""
    record(plans, limit(62))
    after = record(plans, limit(64, resets_at=RESET + 2), now=NOW + 9)
    assert (after.limits[0].percent, after.limits[0].resets_at) == (64, RESET)


def test_nothing_new_writes_nothing(plans):
    record(plans, limit(62.1))
    (path,) = _folder(plans).glob("*.json")
    before = path.stat().st_ino
    record(plans, limit(62.9, at=NOW + FRESH_SECONDS - 1), now=NOW + FRESH_SECONDS - 1)
    assert path.stat().st_ino == before
    record(plans, limit(62.9, at=NOW + FRESH_SECONDS), now=NOW + FRESH_SECONDS)
    assert path.stat().st_ino != before


def test_a_clock_that_was_ahead_leaves_no_measurement_in_the_future(plans):
    record(plans, limit(62, at=NOW + 900), now=NOW)
    assert plans.account(HOST, ACCOUNT, NOW).limits[0].measured_at == NOW


@pytest.mark.parametrize(
    ("percent", "resets_at"),
    [
        (None, RESET), ("62", RESET), (True, RESET), (-1, RESET), (float("nan"), RESET),
        (1e9, RESET), (10**400, RESET), (62, None), (62, "2026-11-26"), (62, float("inf")),
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_no_limit(percent, resets_at):
    assert plan_limit(FIVE_HOURS, percent, resets_at, NOW) is None


@pytest.mark.parametrize("resets_at", [NOW, NOW - 1, 1, NOW + LONGEST_PERIOD_SECONDS + 1])
def test_a_reset_that_is_over_or_no_providers_is_not_kept(plans, resets_at):
    assert record(plans, limit(62, resets_at=resets_at)).limits == []
    assert not _folder(plans).exists()


@pytest.mark.parametrize(
    "damage", [b"", b"[]", b"{", b'{"limits": 7}', b"\xff", b'{"limits": {"five_hour": {}}}']
)
def test_a_damaged_file_is_set_aside_named_and_replaced(plans, damage):
    record(plans, limit(62))
    (path,) = _folder(plans).glob("*.json")
    path.write_bytes(damage)
    assert plans.accounts(NOW) == []
    (named,) = plans.damaged()
    assert named.startswith(path.name)
    assert record(plans, limit(63)).limits[0].percent == 63
    (kept,) = plans.damaged()
    assert (_folder(plans) / kept).read_bytes() == damage


def test_of_damaged_files_the_newest_are_kept(plans):
    for number in range(KEPT_CORRUPT_FILES + 2):
        record(plans, limit(10 + number), now=NOW + number)
        (path,) = _folder(plans).glob("*.json")
        path.write_bytes(b"%d" % number)
    record(plans, limit(50), now=NOW + 9)
    kept = [(_folder(plans) / name).read_bytes() for name in plans.damaged()]
    assert kept == [b"2", b"3", b"4"]


def test_a_planted_link_is_not_followed(plans, tmp_path):
    record(plans, limit(62))
    (path,) = _folder(plans).glob("*.json")
    other = tmp_path / "other"
    other.write_text("precious")
    path.unlink()
    path.symlink_to(other)
    assert plans.accounts(NOW) == []
    record(plans, limit(63))
    assert other.read_text() == "precious"


def test_a_folder_that_others_may_write_is_refused(plans):
    record(plans, limit(62))
    _folder(plans).chmod(0o777)
    with pytest.raises(StateError):
        record(plans, limit(80))


def test_many_writers_leave_the_highest_reading(plans):
    """Two sessions of one account at once, each with what its own last reply said."""
    problems = []

    def write(start):
        try:
            for percent in range(start, 90, 8):
                record(plans, limit(percent))
        except StateError as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # One that did not get the lock in time brings its reading with the next call.
    record(plans, limit(89))
    assert (problems, plans.damaged()) == ([], [])
    assert plans.account(HOST, ACCOUNT, NOW).limits[0].percent == 89
    json.loads((_folder(plans) / files(plans)[0]).read_text())


readings = st.builds(
    lambda percent, period, jitter, at: PlanLimit(
        FIVE_HOURS, percent / 100, RESET + 18_000 * period + jitter, NOW + at
    ),
    st.integers(0, 110),
    st.integers(0, 3),
    st.integers(0, int(SAME_PERIOD_SECONDS / 2)),
    st.integers(-1_000, 1_000),
)


@given(st.lists(readings, min_size=1, max_size=12), st.randoms())
def test_the_order_of_readings_decides_nothing(seen, random):
    """Whatever session comes last: the last period, and in it the highest use."""
    shuffled = list(seen)
    random.shuffle(shuffled)

    def known(order):
        stored = None
        for one in order:
            stored = newer(stored, one)
        return round((stored.resets_at - RESET) // 18_000), stored.used_ratio

    assert known(seen) == known(shuffled)
