"""The readings of an agent over time: what is kept of them, and what damage does."""

import os
import signal
import stat
import subprocess
import sys
from copy import copy
from itertools import groupby, pairwise
from pathlib import Path

import pytest
from helpers.hooked_session import SESSION, HookedSession
from hypothesis import given
from hypothesis import strategies as st

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import SUFFIXES, StateDirectory
from ultramon.pictures.charts import Mark, Point, token_chart
from ultramon.pictures.sparkline import sparkline
from ultramon.pictures.text_timeline import text_timeline
from ultramon.server.posted_agents import COMPACTION, PostedAgents
from ultramon.state.history import HISTORY_POINTS, HistoryPoint, decode_points
from ultramon.state.history_ring import (
    FILE_BYTES,
    POINT_BYTES,
    add_point,
    encode_point,
    pack,
    thin,
    unpack,
)
from ultramon.testing import FakeClock
from ultramon.testing.clock import START
from ultramon.testing.samples import make_record

AGENT = "scout-1"
BLANK = make_record(AGENT)
LEVELS = ["normal", "warning", "critical", None]
READINGS = st.lists(
    st.tuples(
        st.integers(0, 2**33),
        st.integers(-1, 2**33),
        st.sampled_from(["reported", "anchored", "estimated", "a new one"]),
        st.integers(1, 5),
        st.sampled_from(LEVELS),
    ),
    max_size=200,
)


@pytest.fixture
def clock():
    return FakeClock()


def reading(at, tokens, source="reported", epoch=1, level="normal"):
    record = copy(BLANK)
    record.measured_at, record.estimated_tokens, record.tokens_source = at, tokens, source
    record.epoch, record.threshold_status = epoch, level
    return record


def ring_of(records):
    points = b""
    for record in records:
        points = add_point(points, encode_point(record))
    return points


@given(READINGS)
def test_any_readings_are_kept_within_bounds(given_readings):
    """At most 64, in their order, each one that was given; the newest is always there."""
    points = ring_of(reading(*one) for one in given_readings)
    shown = decode_points(unpack(pack(points)))
    assert shown == decode_points(points)
    assert len(shown) <= HISTORY_POINTS
    most = 2**32 - 1
    wanted = iter(
        HistoryPoint(at, min(max(tokens, 0), most), source.replace("a new one", "unknown"), epoch)
        for at, tokens, source, epoch, _ in given_readings
    )
    assert all(point in wanted for point in shown)
    if given_readings:
        assert shown[-1].at == given_readings[-1][0]


@given(st.lists(st.tuples(st.integers(1, 40), st.sampled_from(LEVELS)), min_size=1, max_size=10))
def test_thinning_keeps_the_ends_of_epochs_and_the_crossings(epochs):
    """However many readings an epoch has, its first and last stay, and where the level changed."""
    rows, at = [], 0
    for epoch, (count, level) in enumerate(epochs, 1):
        for number in range(count):
            at += 1
            rows.append(reading(at, at, epoch=epoch, level=level if number > count // 2 else "x"))
    points = [encode_point(record) for record in rows]
    before = points[:HISTORY_POINTS]
    after = thin(b"".join(before))
    kept = [after[at : at + POINT_BYTES] for at in range(0, len(after), POINT_BYTES)]
    ends = set()
    for _, found in groupby(before, key=lambda row: row[10:14]):
        group = list(found)
        ends |= {group[0], group[-1]}
        ends |= {later for row, later in pairwise(group) if row[15] != later[15]}
    assert ends <= set(kept)
    assert [row for row in before if row in set(kept)] == kept


def test_more_epochs_than_room_lose_the_oldest():
    """Nothing but ends: the oldest go, the newest stay."""
    shown = decode_points(ring_of(reading(START + n, n, epoch=n) for n in range(1, 301)))
    assert [point.epoch for point in shown] == list(range(301 - len(shown), 301))
    assert len(shown) > HISTORY_POINTS // 2


def test_a_long_epoch_is_thinned_evenly():
    """After a thousand readings neither its beginning nor its end is a gap."""
    shown = decode_points(ring_of(reading(START + n, n) for n in range(1_000)))
    gaps = [later.at - point.at for point, later in pairwise(shown)]
    assert shown[0].at == START
    assert max(gaps) < 1_000 / 10


@given(st.binary(max_size=FILE_BYTES + 3))
def test_foreign_bytes_are_no_history(data):
    """Of whatever else lies there nothing is read."""
    assert unpack(data) == b""


@given(st.integers(0, FILE_BYTES - 1), st.integers(1, 255))
def test_a_changed_byte_is_no_history(place, change):
    """A ring is read as it was written, or not at all."""
    data = bytearray(pack(ring_of(reading(START + n, n) for n in range(40))))
    data[place] ^= change
    assert unpack(bytes(data)) == b""


@pytest.mark.parametrize("foreign", ["link", "fifo", "directory", "hard link", "long", "empty"])
def test_a_foreign_file_costs_the_picture_only(tmp_path, foreign):
    """The state is stored, nothing is followed or written elsewhere, and a file is replaced."""
    files = StateDirectory(str(tmp_path / "state"))
    files.prepare()
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    path = Path(files.file(AGENT, ".hist"))
    if foreign == "link":
        path.symlink_to(victim)
    elif foreign == "fifo":
        os.mkfifo(path)
    elif foreign == "directory":
        path.mkdir()
    elif foreign == "hard link":
        path.hardlink_to(victim)
    else:
        path.write_bytes(b"x" * 10_000 if foreign == "long" else b"")
    assert files.read_history(AGENT) == b""
    files.replace(reading(START, 7), durable=False)
    assert files.read(AGENT).estimated_tokens == 7
    assert victim.read_bytes() == b"precious"
    is_replaced = foreign in ("hard link", "long", "empty")
    assert decode_points(files.read_history(AGENT)) == (
        [HistoryPoint(START, 7, "reported", 1)] if is_replaced else []
    )


def test_a_history_is_a_private_file_of_fixed_size(tmp_path):
    """Mode 0600, beside the state, as long with one reading as with a thousand."""
    files = StateDirectory(str(tmp_path / "state"))
    files.prepare()
    path = files.file(AGENT, ".hist")
    for number in range(100):
        files.replace(reading(START + number, number), durable=False)
        assert os.path.getsize(path) == FILE_BYTES == 1_037
    assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
    files.remove(AGENT)
    assert os.listdir(files.folder) == []
    assert ".hist" in SUFFIXES


def test_nothing_new_writes_nothing(tmp_path):
    """A save with the same reading leaves the ring's file as it is."""
    files = StateDirectory(str(tmp_path / "state"))
    files.prepare()
    files.replace(reading(START, 7), durable=False)
    path = files.file(AGENT, ".hist")
    os.utime(path, ns=(1, 1))
    files.replace(reading(START, 7), durable=True)
    assert os.lstat(path).st_mtime_ns == 1


def test_a_thousand_agents_have_a_history_each(tmp_path):
    """None is mixed up with another, and a listing takes none of them for an agent."""
    backend = LocalBackend(str(tmp_path / "state"))
    backend.directory.prepare()
    for number in range(1_000):
        record = reading(START, number)
        record.agent_id = f"scout-{number}"
        # Without its state: a thousand synced files would be all that this test does.
        backend.directory._add_reading(record)
    assert backend.list_agents() == []
    for number in range(1_000):
        assert backend.history(f"scout-{number}") == [HistoryPoint(START, number, "reported", 1)]


def points_of(*tokens):
    return [HistoryPoint(START + n, count, "reported", 1) for n, count in enumerate(tokens)]


@pytest.mark.parametrize(
    ("tokens", "limit", "width", "line", "ascii_line"),
    [
        ((), 100, 4, "    ", "    "),
        ((0, 50, 99), 100, 3, "▁▅█", "_=#"),
        ((10, 20), 100, 4, "  ▁▂", "  _."),
        ((10, 150), 100, 2, "▁█", "_#"),
        ((1, 90, 1, 2, 3, 4), 100, 3, "█▁▁", "#__"),
        ((5, 10), None, 2, "▅█", "=#"),
        ((0, 0), None, 2, "▁▁", "__"),
        ((3,), -1, 1, "█", "#"),
    ],
)
def test_a_sparkline_shows_the_highest_of_each_share(tokens, limit, width, line, ascii_line):
    """Newest at the right end, the limit at full height, without one the highest reading."""
    points = points_of(*tokens)
    assert sparkline(points, limit_tokens=limit, width=width) == line
    assert sparkline(points, limit_tokens=limit, width=width, ascii_only=True) == ascii_line


LINES = [(80, "critical"), (100, "limit")]


def test_a_timeline_in_text_shows_rungs_epochs_and_marks():
    """Fullness as columns over time, the words of rungs beside, epochs and marks below."""
    points = [
        HistoryPoint(0.0, 20, "reported", 1),
        HistoryPoint(5.0, 90, "reported", 1),
        HistoryPoint(10.0, 30, "reported", 2),
        HistoryPoint(15.0, 60, "reported", 2),
    ]
    drawn = text_timeline(
        points, width=20, height=5, lines=LINES, marks=[(16.0, "handoff")], until=20.0
    )
    assert drawn == [
        "┄┄┄┄┄▄▄▄▄▄┄┄┄┄┄┄┄┄┄┄ limit",
        "┄┄┄┄┄█████┄┄┄┄┄┄┄┄┄┄ critical",
        "     █████     █████",
        "     █████▄▄▄▄▄█████",
        "████████████████████",
        "────────────────────",
        "          2     handoff",
    ]
    plain = text_timeline(points, width=20, height=5, lines=LINES, until=20.0, ascii_only=True)
    assert "\n".join(plain).isascii()
    assert plain[0] == "-----.....---------- limit"


@given(
    st.lists(
        st.tuples(st.integers(0, 10**11), st.integers(0, 2**32 - 1), st.integers(0, 9)), max_size=64
    ),
    st.integers(1, 90),
    st.none() | st.integers(-5, 2**33),
    st.lists(st.tuples(st.integers(0, 2**33), st.just("x")), max_size=3),
    st.lists(st.tuples(st.integers(-(10**12), 10**12), st.just("H")), max_size=3),
)
def test_any_history_is_drawn_within_its_picture(rows, width, limit, lines, marks):
    """Whatever times and numbers a file holds: of the right size, and nothing outside."""
    points = [HistoryPoint(at, tokens, "reported", epoch) for at, tokens, epoch in rows]
    for ascii_only in (False, True):
        line = sparkline(points, limit_tokens=limit, width=width, ascii_only=ascii_only)
        assert len(line) == width
    drawn = text_timeline(points, width=width, height=4, lines=lines, marks=marks)
    assert all(len(one.partition(" x")[0]) <= width for one in drawn[:4])
    begin = points[0].at if points else 0.0
    chart = token_chart(
        [Point(one.at, one.used_tokens, one.epoch) for one in points],
        "words",
        begin=begin,
        end=begin + 86_400,
        limit_tokens=max(limit or 0, 0),
        marks=[Mark(at, "handoff", text) for at, text in marks],
    )
    corners = [
        tuple(map(float, one.split(",")))
        for area in chart.iter("polygon")
        for one in area.get("points").split()
    ]
    assert all(0 <= x <= 1_000 and 0 <= y <= 200 for x, y in corners)
    assert all(0 <= float(line.get("x1").rstrip("%")) <= 100 for line in chart.iter("line"))
    if points:
        assert drawn[4] == "─" * width
    else:
        assert drawn == corners == []


WRITER = """
import sys
from ultramon.backends.local.state_files import StateDirectory
from ultramon.testing.samples import make_record

files = StateDirectory(sys.argv[1])
files.prepare()
record = make_record("scout-1", tokens_source="reported")
number = 0
while True:
    number += 1
    record.measured_at, record.estimated_tokens, record.epoch = number, number, 1 + number // 500
    files._add_reading(record)
    if number == 1000:
        print("writing", flush=True)
"""


def test_a_kill_while_it_is_written_leaves_a_whole_history(tmp_path):
    """After each of five kills it is whole; a reader beside the writer sees a whole one or none."""
    files = StateDirectory(str(tmp_path))
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout.readline() == "writing\n"
            seen = [decode_points(files.read_history(AGENT)) for _ in range(50)]
            os.kill(writer.pid, signal.SIGKILL)
        left = decode_points(unpack(Path(files.file(AGENT, ".hist")).read_bytes()))
        for points in (left, *filter(None, seen)):
            assert HISTORY_POINTS // 2 < len(points) <= HISTORY_POINTS
            assert [point.used_tokens for point in points] == [point.at for point in points]
        os.unlink(files.file(AGENT, ".hist"))


def fillings(points):
    return [(point.used_tokens, point.source, point.epoch) for point in points]


def test_a_monitor_leaves_its_readings(store, clock):
    """Reports, crossings and a compaction: what was saved is in the history, none of it twice."""
    config = ContextConfig(context_limit_tokens=100_000)
    with create_context_monitor(AGENT, config, backend=store, clock=clock) as monitor:
        for tokens in (20_000, 71_000, 90_000):
            clock.advance(60)
            monitor.report_usage(input_tokens=tokens)
            monitor.update_heartbeat()
            monitor.update_heartbeat()
        clock.advance(60)
        monitor.record_compaction(tokens_after=15_000)
    assert fillings(store.history(AGENT)) == [
        (20_000, "reported", 1),
        (71_000, "reported", 1),
        (90_000, "reported", 1),
        (15_000, "estimated", 2),
    ]


def test_a_hook_leaves_the_readings_of_its_session(tmp_path):
    """A process for each call, of standard library alone; a subagent has a history of its own."""
    session = HookedSession(tmp_path)
    for tokens in (40_000, 90_000):
        session.tool(tokens)
    session.call("PostToolUse", tool_name="Bash", tool_response={}, tool_use_id="toolu_again")
    session.tool(7_000, agent="a1")
    session.boundary()
    session.call("SessionStart", source="compact")
    session.tool(20_000)
    backend = LocalBackend(str(session.state))
    assert fillings(backend.history(SESSION)) == [
        (40_000, "reported", 1),
        (90_000, "reported", 1),
        (20_000, "reported", 2),
    ]
    assert fillings(backend.history(f"{SESSION}.a1")) == [(7_000, "reported", 1)]


def test_posts_leave_their_readings(store, clock):
    """Tokens that others post, over a boundary; a percentage alone is no count of tokens."""
    posted = PostedAgents(store)
    posted.start(AGENT, clock.now())
    posted.report_usage(AGENT, clock.now(), used_percentage=10.0)
    for percentage, tokens in ((20.0, 40_000), (40.0, 80_000)):
        clock.advance(60)
        posted.report_usage(
            AGENT, clock.now(), used_percentage=percentage, total_input_tokens=tokens
        )
    clock.advance(60)
    posted.report_event(AGENT, COMPACTION, clock.now())
    posted.report_usage(AGENT, clock.now(), used_percentage=5.0)
    assert [(tokens, epoch) for tokens, _, epoch in fillings(store.history(AGENT))] == [
        (40_000, 1),
        (80_000, 1),
        (10_000, 2),
    ]
