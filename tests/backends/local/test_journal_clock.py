"""The journal's clock: wall clocks that are set, boots, machines, and journals from before it."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import closing

import pytest
from helpers import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.connection import JournalConnection
from ultramon.backends.local.inbox_flags import is_raised, postpone, raise_flag
from ultramon.backends.local.journal import JOURNAL
from ultramon.backends.memory import MemoryBackend
from ultramon.backends.store_time import bounded, skew
from ultramon.notices.message import EXPIRY_SECONDS, Draft
from ultramon.notices.message_rules import LEASE_SECONDS, MAX_ATTEMPTS
from ultramon.system.boot_clock import BootReading, read_boot
from ultramon.testing.clock import START

HOUR = 3_600
DAY = 24 * HOUR
SET_BY = st.integers(-3 * DAY, 3 * DAY)


class Machine:
    """A machine in a boot: its own clock continues, its wall clock is as far ahead as it is set."""

    def __init__(self, name, ahead=0, booted_at=0):
        self.name = name
        self.ahead = ahead
        self.booted_at = booted_at

    def reading(self, passed):
        up_seconds = passed - self.booted_at
        return BootReading(self.name, START + passed + self.ahead - up_seconds)

    def now(self, passed):
        return START + passed + self.ahead


class World:
    """A store that several machines share, and the time that has truly passed."""

    def __init__(self):
        self.backend = MemoryBackend()
        self.passed = 0
        self.machine = Machine("boot-1")
        self.take_over()

    def take_over(self):
        """Have the store read this world's clocks, not those of a world that was made later."""
        JournalConnection.read_boot = staticmethod(lambda: self.machine.reading(self.passed))

    @property
    def now(self):
        self.take_over()
        return self.machine.now(self.passed)


@pytest.fixture(autouse=True)
def _own_clocks():
    """Give the store the clocks of this machine back."""
    yield
    JournalConnection.read_boot = staticmethod(read_boot)


def act(world, action, held):
    """Do one thing with the queue; return everything that its caller sees of it."""
    queue, now = world.backend.queue, world.now
    if action == "send":
        queue.queue_message(Draft("boss", "hello"), now=now)
    elif action == "claim":
        held += queue.claim("boss", now=now, limit=2)
        return [(message.id, message.attempts) for message in held]
    elif action == "lease":
        holder = f"fleet-{len(held) % 2}"
        return world.backend.subscribe("main", holder, now=now, lease_seconds=30.0) is not None
    elif held:
        message = held.pop(0)
        if action == "acknowledge":
            return queue.acknowledge(message.id, message.claim_token)
        if action == "reject":
            return queue.reject(message.id, message.claim_token, "no", now=now)
        return queue.extend(message.id, message.claim_token, now=now, lease_seconds=40.0)
    depth = queue.depth(now=now)
    waiting = [message.id for message in queue.peek("boss", now=now)]
    return waiting, [one[:7] for one in depth], len(queue.dead())


ACTIONS = st.sampled_from(["send", "claim", "acknowledge", "reject", "extend", "lease", "look"])
PASSING = st.sampled_from([0, 1, 2, 5, 29, 30, 31, 300, HOUR, DAY])


@settings(deadline=None)
@given(steps=st.lists(st.tuples(ACTIONS, PASSING, SET_BY), max_size=40))
def test_within_a_boot_no_setting_of_the_wall_clock_changes_anything(steps):
    """A queue under a clock that is set before every call does what one under a right one does."""
    right, wrong = World(), World()
    held, also_held = [], []
    for action, passes, ahead in steps:
        for world in (right, wrong):
            world.passed += passes
        wrong.machine.ahead = ahead
        assert act(right, action, held) == act(wrong, action, also_held)


MACHINES = st.builds(Machine, st.sampled_from(["boot-1", "boot-2", "boot-3"]), SET_BY)


@settings(deadline=None)
@given(claimer=MACHINES, reader=MACHINES, later=st.integers(0, HOUR))
def test_a_lease_is_over_at_most_its_length_after_the_first_look(claimer, reader, later):
    """Whichever machine or boot granted it, and whatever its wall clock showed."""
    world = World()
    world.machine = claimer
    queue, subscribe = world.backend.queue, world.backend.subscribe
    for text in ("claimed", "rejected"):
        queue.queue_message(Draft("boss", text), now=world.now)
    claimed, rejected = queue.claim("boss", now=world.now)
    queue.reject(rejected.id, rejected.claim_token, "no", now=world.now)
    subscribe("main", "fleet-1", now=world.now, lease_seconds=LEASE_SECONDS)
    world.machine, world.passed = reader, later

    def look():
        has_name = subscribe("main", "fleet-2", now=world.now, lease_seconds=LEASE_SECONDS)
        return [message.id for message in queue.claim("boss", now=world.now)], has_name is not None

    first = look()
    if reader.name == claimer.name and later < LEASE_SECONDS:
        assert first == ([rejected.id] if later >= 2 else [], False)
    world.passed += LEASE_SECONDS
    found, has_name = look()
    assert has_name
    was_expired = not queue.peek("boss", now=world.now)
    assert claimed.id in (*first[0], *found) or was_expired
    if reader.ahead - claimer.ahead + later + LEASE_SECONDS < EXPIRY_SECONDS:
        assert not was_expired


@given(
    until=st.floats(0, 1e10),
    length=st.floats(0, 1e8),
    looks=st.lists(st.floats(0, 1e10), min_size=1),
)
def test_a_bounded_end_never_moves_away(until, length, looks):
    """However often and whenever it is looked at, it comes no later than the first look allows."""
    first, end = looks[0], until
    for at in looks:
        assert (end := bounded(end, length, at)) <= min(until, first + length)


@given(anchor=st.floats(-1e9, 1e10), offset=st.floats(-1e9, 1e10))
def test_a_skew_is_the_difference_or_nothing(anchor, offset):
    """Two clocks within a second count as one."""
    assert skew(anchor, offset) in (anchor - offset, 0.0)
    assert abs(anchor - offset - skew(anchor, offset)) < 1.0


@pytest.mark.parametrize("attempts", range(1, MAX_ATTEMPTS))
def test_a_retry_under_a_clock_before_this_boot_waits_for_its_own_pause(attempts):
    """Before a reboot the clock was 12 h ahead: a message is due after the pause it was to have."""
    world = World()
    queue = world.backend.queue
    queue.queue_message(Draft("boss", "hello"), now=world.now)
    for attempt in range(1, attempts + 1):
        (message,) = queue.claim("boss", now=world.now)
        if attempt == attempts:
            world.machine = Machine("boot-0", ahead=12 * HOUR)
        queue.reject(message.id, message.claim_token, "no", now=world.now)
        world.passed += 2**attempt
    world.machine = Machine("boot-2", booted_at=world.passed)
    assert queue.claim("boss", now=world.now) == []
    world.passed += 2**attempts - 1
    assert queue.claim("boss", now=world.now) == []
    world.passed += 1
    assert len(queue.claim("boss", now=world.now)) == 1


def test_a_clock_that_a_boot_set_back_keeps_no_message_for_longer_than_it_lasts():
    """Queued a year ahead of the next boot's time it arrives, and its day begins anew."""
    world = World()
    world.machine.ahead = 365 * DAY
    queue = world.backend.queue
    queue.queue_message(Draft("boss", "hello"), now=world.now)
    world.machine = Machine("boot-2")
    (message,) = queue.claim("boss", now=world.now)
    assert (message.queued_at, message.expires_at) == (START, START + DAY)


def test_times_of_messages_are_those_of_the_right_clock():
    """What people see of a message that was sent under a wrong clock is when it was sent."""
    world = World()
    queue = world.backend.queue
    queue.queue_message(Draft("boss", "first"), now=world.now)
    world.machine.ahead, world.passed = 12 * HOUR, 10
    queue.queue_message(Draft("boss", "second"), now=world.now)
    world.machine.ahead = 0
    assert [message.queued_at for message in queue.peek("boss", now=world.now)] == [
        START,
        START + 10,
    ]
    world.machine.ahead = -HOUR
    assert queue.depth(now=world.now)[0].oldest_at == START - HOUR


def test_a_machine_that_reports_no_boot_goes_by_its_wall_clock(tmp_path):
    """Its claims end with their lease from the first look on all the same."""
    world = World()
    world.machine = Machine("", ahead=12 * HOUR)
    queue = world.backend.queue
    queue.queue_message(Draft("boss", "hello"), now=world.now)
    assert len(queue.claim("boss", now=world.now)) == 1
    world.machine.ahead = 0
    assert queue.claim("boss", now=world.now) == []
    world.passed = LEASE_SECONDS
    assert len(queue.claim("boss", now=world.now)) == 1


def test_leases_and_retries_of_an_older_journal_end(tmp_path):
    """Those that an earlier version stored under a clock that was ahead do not wait for it."""
    shutil.copyfile(DATA / "journals" / "version-5.sqlite3", tmp_path / JOURNAL)
    os.chmod(tmp_path / JOURNAL, 0o600)
    with closing(LocalBackend(str(tmp_path))) as backend:
        queue = backend.queue
        assert queue.claim("scout-3", now=99.0) == []
        assert [message.text for message in queue.claim("scout-3", now=100.0)] == [
            "claimed under version 5"
        ]
        assert queue.claim("scout-4", now=100.0) == []
        assert len(queue.claim("scout-4", now=102.0)) == 1
        lease = {"lease_seconds": LEASE_SECONDS}
        assert backend.subscribe("ahead", "fleet-2", now=100.0, **lease) is None
        assert backend.subscribe("ahead", "fleet-2", now=129.0, **lease) is None
        assert backend.subscribe("ahead", "fleet-2", now=130.0, **lease) is not None


def test_a_refused_subscription_writes_nothing(tmp_path):
    """A second orchestrator that waits for the name wakes no reader of events."""
    with closing(LocalBackend(str(tmp_path))) as backend:
        backend.subscribe("main", "fleet-1", now=START, lease_seconds=LEASE_SECONDS)
        mark = backend.change_mark()
        for later in (0, 1, 29):
            assert not backend.subscribe("main", "fleet-2", now=START + later, lease_seconds=1.0)
        assert backend.change_mark() == mark


def test_a_flag_that_was_postponed_under_a_clock_that_was_ahead_is_raised(tmp_path, monkeypatch):
    """The next hook call looks at once, and not when the wall clock gets there."""
    raise_flag(str(tmp_path), "scout-1")
    postpone(str(tmp_path), "scout-1", time.time() + HOUR)
    assert not is_raised(str(tmp_path), "scout-1")
    right_time = time.time
    monkeypatch.setattr(time, "time", lambda: right_time() - 12 * HOUR)
    assert is_raised(str(tmp_path), "scout-1")


def test_a_boot_has_a_name_and_an_offset_that_stays():
    """Read twice, both are the same on a machine whose clock nobody sets."""
    first, second = read_boot(), read_boot()
    assert first.boot_id == second.boot_id
    assert skew(first.offset_seconds, second.offset_seconds) == 0.0
