"""Times as text: RFC 3339 UTC out, RFC 3339 in, whatever zone the machine is in."""

import math
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ultramon.system.timestamps import format_time, parse_time

seconds = st.floats(-62_135_596_800, 253_402_300_798)
aware_times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
GARBAGE = [
    None, 0, 1.5, b"2026-11-21T20:28:51Z", [], "", "Z", "now", "2026-11-21", "2026-11-21T20:28:51",
    "2026-11-21T20:28Z", "2026-11-21X20:28:51Z", "2026-11-21T20:28:51.Z", "2026-11-21T20:28:51,5Z",
    "2026-11-21T20:28:51.5.5Z", "2026-11-21T20:28:51.5e3Z", "2026-11-21T24:00:00Z",
    "2026-11-21T20:60:00Z", "2026-11-21T20:28:61Z", "2026-00-21T20:28:51Z", "2026-13-21T20:28:51Z",
    "2026-11-00T20:28:51Z", "2026-11-31T20:28:51Z", "2026-02-29T20:28:51Z", "1900-02-29T20:28:51Z",
    "2024-02-30T20:28:51Z", "0000-01-01T00:00:00Z", "-026-11-21T20:28:51Z", "2026-11-21T20:28:51+1",
    "2026-11-21T20:28:51+24:00", "2026-11-21T20:28:51+01:60", "2026-11-21T20:28:51+0100",
    "2026-11-21T20:28:51 Z", "٢٠٢٦-11-21T20:28:51Z", "2026-11-21T20:28:51.٥Z",
    "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01", "2026-11-21T2 :28:51Z",
]  # fmt: skip


@given(seconds)
@example(0.0)
@example(-0.0005)
@example(1_700_000_000.9999999)
@example(2**31)
@example(253_402_300_798.9996)
def test_a_time_reads_like_datetime_reads_it(epoch_seconds):
    """The text is what datetime makes of the same moment, and comes back to the millisecond."""
    text = format_time(epoch_seconds)
    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
        milliseconds=round(epoch_seconds * 1000)
    )
    assert datetime.fromisoformat(text) == expected
    assert text.endswith("Z")
    again = parse_time(text)
    assert again is not None
    assert abs(again - epoch_seconds) <= 0.0005 + 1e-4 * (abs(epoch_seconds) > 1e10)
    assert format_time(again) == text


@given(aware_times, st.integers(-23 * 60 - 59, 23 * 60 + 59), st.sampled_from(["T", "t", " "]))
def test_any_offset_is_understood(moment, offset_minutes, separator):
    """RFC 3339 from other programs, in any zone and with microseconds, is the same moment."""
    zone = timezone(timedelta(minutes=offset_minutes))
    text = moment.astimezone(zone).isoformat(separator)
    parsed = parse_time(text)
    assert parsed == pytest.approx(moment.timestamp(), abs=1e-3)


@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
def test_what_is_no_time_is_none(garbage):
    """Nothing is guessed and nothing raises."""
    assert parse_time(garbage) is None


@given(st.text() | st.text("0123456789-:.TZ+", min_size=18, max_size=30) | st.integers())
def test_reading_a_time_never_raises(text):
    """Whatever stands in a file is a time or None, and a time can be written again."""
    parsed = parse_time(text)
    if parsed is not None:
        format_time(parsed)


@pytest.mark.parametrize("day", ["2024-02-29", "2000-02-29", "2026-02-28", "2024-12-31"])
def test_leap_years_have_their_day(day):
    """The day exists and is the one datetime counts."""
    assert parse_time(f"{day}T00:00:00Z") == datetime.fromisoformat(f"{day}T00:00Z").timestamp()


def test_a_leap_second_is_the_first_of_the_next_minute():
    """23:59:60 is accepted, as clocks write it."""
    assert parse_time("2016-12-31T23:59:60Z") == parse_time("2017-01-01T00:00:00Z")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e12, 1e300, -1e12])
def test_what_no_calendar_holds_cannot_be_written(value):
    """A time that could not be read back raises ValueError instead of being stored."""
    with pytest.raises(ValueError, match="not in the years 1 to 9999"):
        format_time(value)


@pytest.mark.parametrize(
    "zone", ["UTC", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "ABC-13:45"]
)
@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "tr_TR.UTF-8"])
def test_the_machines_zone_and_language_do_not_matter(zone, locale):
    """Summer time, odd offsets and other languages leave every stamp as it is."""
    code = (
        "import locale, sys\n"
        "try:\n    locale.setlocale(locale.LC_ALL, '')\nexcept locale.Error:\n    pass\n"
        "from ultramon.system.timestamps import format_time, parse_time\n"
        "for at in (0, 1792893600, 1792897200.5, 1774742399, 4102444800):\n"
        "    text = format_time(at)\n    print(text, parse_time(text) == at)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TZ": zone, "LC_ALL": locale},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "1970-01-01T00:00:00.000Z True",
        "2026-10-25T02:00:00.000Z True",
        "2026-10-25T03:00:00.500Z True",
        "2026-03-28T23:59:59.000Z True",
        "2100-01-01T00:00:00.000Z True",
    ]


@given(st.integers(-62_135_596_800_000, 253_402_300_799_000), st.sampled_from("TZ.-:\u0665 5"))
def test_a_minute_seen_before_is_read_the_same_way(milliseconds, other):
    """Times as they are written come back the same again and again, spoilt ones never."""
    text = format_time(milliseconds / 1000)
    assert parse_time(text) == parse_time(text) == parse_time(text[:23] + "+00:00")
    for position in (17, 18, 20, 22):
        spoilt = text[:position] + other + text[position + 1 :]
        assert parse_time(spoilt) is None or other == "5"
