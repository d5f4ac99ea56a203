"""Readings that are posted at the same time: durable in one log, in their state files later."""

import asyncio
import itertools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers.running_server import ServeProgram, Serving

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateWriteError
from ultramon.notices.registration import StoredRegistration
from ultramon.server import posted_readings, reading_log
from ultramon.server.posted_agents import MEMORY, PostedAgents
from ultramon.server.posted_readings import PostedReadings
from ultramon.server.reading_log import FILES, LogFullError, Reading, ReadingLog
from ultramon.system.locks import LockedError
from ultramon.testing import FakeClock

AGENTS = [f"agent-{number}" for number in range(8)]
TIMEOUT_SECONDS = 60
KILLS = 3
MANY_KILLS = 200


def reading(number, agent_id="agent-0"):
    return Reading(agent_id, 1.0, 1, number, float(number), 10.0, 20_000 + number, None)


@pytest.fixture
def log(tmp_path):
    log = ReadingLog(str(tmp_path), lambda _number: True)
    yield log
    log.close()


# --- the log


def test_readings_come_back_in_their_order(log, tmp_path):
    """Several writes, and a new owner after a crash."""
    readings = [reading(number) for number in range(1, 30)]
    for start in range(0, len(readings), 7):
        log.write(readings[start : start + 7], start + 7)
    log.close()
    assert ReadingLog(str(tmp_path), lambda _: True).recover() == readings


def test_the_files_take_turns(log, monkeypatch):
    """What an earlier turn left behind the last line is not taken for a reading."""
    monkeypatch.setattr(reading_log, "FILE_BYTES", 600)
    readings = [reading(number) for number in range(1, 100)]
    for number, one in enumerate(readings):
        log.write([one], number)
    kept = log.recover()
    assert 4 < len(kept) < 30
    assert kept == readings[-len(kept) :]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_line_ends_the_log(log, tmp_path, cut):
    """A write that a power cut tore was not answered."""
    log.write([reading(1)], 1)
    end = (tmp_path / FILES[0]).read_bytes().index(b"\0")
    log.write([reading(2)], 2)
    with (tmp_path / FILES[0]).open("r+b") as file:
        file.seek(end + cut)
        file.write(bytes(200))
    assert log.recover() == [reading(1)]


def test_a_full_log_refuses_until_the_states_are_written(tmp_path, monkeypatch):
    """No reading is overwritten before its state file holds it."""
    monkeypatch.setattr(reading_log, "FILE_BYTES", 600)
    written = [0]
    log = ReadingLog(str(tmp_path), lambda number: number in written)
    numbers = itertools.count(1)
    kept = []

    def fill():
        while True:
            number = next(numbers)
            log.write([reading(number)], number)
            kept.append(number)

    with pytest.raises(LogFullError, match="is full"):
        fill()
    assert [one.seq for one in log.recover()] == kept
    written.extend(kept)
    log.write([reading(1_000)], 1_000)
    assert log.recover()[-1] == reading(1_000)
    log.close()


def test_a_log_has_one_owner(log, tmp_path):
    """A second server of the directory does not write into it."""
    with pytest.raises(LockedError):
        ReadingLog(str(tmp_path), lambda _: True)


# --- posts that overlap, with states that are not written by themselves


class Taking:
    """Takes posts of all agents at once, in a loop of its own each time."""

    def __init__(self, directory, backend=LocalBackend):
        self.backend = backend(str(directory))
        self.posted = PostedAgents(self.backend)
        self.readings = PostedReadings(self.backend, self.posted)
        self.clock = FakeClock()
        self.readings.open()

    def begin(self):
        """Make the agents known, and bring their states into memory."""
        for agent_id in AGENTS:
            self.posted.start(agent_id, self.clock.now())
        self.post(1)
        self.post(2)

    def post(self, percentage, *agents, **options):
        """Post one reading of each agent; return the answers."""
        self.clock.advance(1)

        async def post_all():
            posts = (
                self.readings.report(
                    agent_id,
                    self.clock.now(),
                    used_percentage=float(percentage),
                    total_input_tokens=percentage * 2_000,
                    **options,
                )
                for agent_id in agents or AGENTS
            )
            return await asyncio.gather(*posts)

        return [answer["status"] for answer in asyncio.run(post_all())]

    def crash(self):
        """Leave everything as a killed process would."""
        self.readings._log.close()
        self.backend.close()


@pytest.fixture
def lazily(monkeypatch):
    """Have states written when it must be, and not after a while."""
    monkeypatch.setattr(posted_readings, "WRITE_SECONDS", TIMEOUT_SECONDS)


@pytest.fixture
def taking(tmp_path, lazily):
    taking = Taking(tmp_path / "states")
    taking.begin()
    yield taking
    taking.readings.close()
    taking.backend.close()


def percentages(directory):
    """Return what the state files say, as another process reads them."""
    reader = LocalBackend(str(directory))
    found = {
        agent.agent_id: agent.record.extra[MEMORY]["usedPercentage"]
        for agent in reader.list_agents()
    }
    reader.close()
    return found


def test_what_a_crash_left_in_the_log_is_taken_again(taking, tmp_path):
    """Also several readings of one agent, under the numbers that they were answered with."""
    for percentage in (11, 12, 13):
        assert set(taking.post(percentage)) == {"not_registered"}
    expected = {one.agent_id: one.record.to_json() for one in taking.backend.list_agents()}
    assert min(percentages(tmp_path / "states").values()) < 13
    taking.crash()
    again = Taking(tmp_path / "states")
    assert set(percentages(tmp_path / "states").values()) == {13.0}
    assert {one.agent_id: one.record.to_json() for one in again.backend.list_agents()} == expected
    assert not (tmp_path / "states" / FILES[0]).exists()
    again.readings.close()


def test_a_log_is_taken_once(taking, tmp_path):
    """A second crash right after the first recovery changes nothing."""
    taking.post(40)
    taking.crash()
    Taking(tmp_path / "states").crash()
    again = Taking(tmp_path / "states")
    assert set(percentages(tmp_path / "states").values()) == {40.0}
    again.readings.close()


def test_a_later_agent_of_the_same_id_gets_no_reading_of_the_former(taking, tmp_path):
    """It was deleted, and began anew under the same generation."""
    taking.post(40)
    taking.crash()
    backend = LocalBackend(str(tmp_path / "states"))
    backend.directory.remove(AGENTS[0])
    PostedAgents(backend).start(AGENTS[0], taking.clock.now() + 5)
    backend.close()
    again = Taking(tmp_path / "states")
    assert again.backend.load(AGENTS[0]).record.measured_at is None
    again.readings.close()


def test_readers_in_the_server_see_what_was_answered(taking, tmp_path):
    """`load`, lists and changes, before any file is written."""
    seen = {}
    taking.backend.changes(None, seen)
    taking.post(33)
    assert taking.backend.load(AGENTS[3]).record.usage_ratio == 0.33
    listed = taking.backend.list_agents()
    assert {one.record.usage_ratio for one in listed} == {0.33}
    changed = taking.backend.changes(None, seen).changed
    assert {one.agent_id for one in changed} == set(AGENTS)
    assert taking.backend.changes(None, seen).changed == []


def test_an_orderly_end_writes_every_state(taking, tmp_path):
    """And leaves no log behind."""
    taking.post(35)
    taking.readings.close()
    assert set(percentages(tmp_path / "states").values()) == {35.0}
    assert not any((tmp_path / "states" / name).exists() for name in FILES)


def test_a_crossing_is_stored_before_its_answer(taking, tmp_path):
    """The event, the notice and the state, with what the log knew of the agent before."""
    taking.post(50)
    registration = StoredRegistration(AGENTS[0], "boss", "explicit", None, "boss", 0.0)
    taking.backend.registry.register(registration)
    assert taking.post(75)[0] == "ok"
    reader = LocalBackend(str(tmp_path / "states"))
    assert set(percentages(tmp_path / "states").values()) == {75.0}
    # An event for which the journal was busy waits in the state.
    waiting = [event for one in reader.list_agents() for event in one.record.pending or ()]
    crossings = [
        event["agentId"]
        for event in [*reader.events().events, *waiting]
        if event["type"] == "context_threshold_reached"
    ]
    assert sorted(crossings) == AGENTS
    notices = reader.queue.peek("boss", now=taking.clock.now())
    assert [one.sender for one in notices] == [AGENTS[0]]
    reader.close()


def test_a_late_reading_and_a_repeated_one_change_nothing(taking):
    """They are answered as without the log."""
    taking.post(20, emitted_at=100.0)
    before = taking.backend.load(AGENTS[0]).record.seq
    assert set(taking.post(19, emitted_at=99.0)) == {"stale_sample"}
    assert taking.backend.load(AGENTS[0]).record.seq == before


def test_an_end_comes_after_the_readings_before_it(taking):
    """And no reading after it."""
    taking.post(30)
    assert taking.posted.finish(AGENTS[0], "completed", taking.clock.now())
    record = taking.backend.load(AGENTS[0]).record
    assert (record.usage_ratio, record.active) == (0.3, False)
    assert taking.post(31)[:2] == ["stopped", "not_registered"]


def test_a_second_server_of_a_directory_writes_each_state(taking, tmp_path):
    """The newest reading stays, whichever of both took it."""
    other = Taking(tmp_path / "states")
    taking.post(30)
    other.clock.advance(100)
    assert set(other.post(60)) == {"not_registered"}
    assert set(percentages(tmp_path / "states").values()) == {60.0}
    taking.readings.close()
    assert set(percentages(tmp_path / "states").values()) == {60.0}
    other.readings.close()
    other.backend.close()


def test_a_log_that_cannot_be_made_costs_nothing_but_time(tmp_path, lazily):
    """Each post then waits for its state file."""
    taking = Taking(tmp_path / "states")
    taking.begin()
    taking.readings._log.remove()
    (tmp_path / "states" / FILES[0]).mkdir()
    assert set(taking.post(44)) == {"not_registered"}
    assert set(percentages(tmp_path / "states").values()) == {44.0}
    (tmp_path / "states" / FILES[0]).rmdir()
    taking.readings.close()


class FullBackend(LocalBackend):
    """Has no room for states until it is given some."""

    is_full = False

    def record(self, record, events, *, durable):
        if self.is_full:
            raise StateWriteError(self.directory.path, "No space left on device")
        return super().record(record, events, durable=durable)


def test_a_full_disk_loses_no_answered_reading(tmp_path, lazily, monkeypatch):
    """While states cannot be written the log fills up; then posts are refused, and none is lost."""
    monkeypatch.setattr(reading_log, "FILE_BYTES", 4_000)
    taking = Taking(tmp_path / "states", FullBackend)
    taking.begin()
    taking.backend.is_full = True
    answered = 2
    try:
        while True:
            taking.post(answered + 1)
            answered += 1
    except StateWriteError as error:
        assert "No space left" in str(error)  # noqa: PT017 - after some that were taken
    assert 5 < answered < 60
    taking.backend.is_full = False
    taking.readings.close()
    assert min(percentages(tmp_path / "states").values()) >= answered
    taking.backend.close()


# --- a server on a socket


def test_a_server_shares_the_log_between_clients(tmp_path):
    """What it answered it shows at once; its files have it at the end."""
    with Serving(directory=tmp_path / "states") as serving:
        for agent_id in AGENTS:
            assert serving.admin.post("/agents", json={"agentId": agent_id}).status_code == 201

        def post(agent_id):
            client = serving.client(serving.services.hook_secret)
            for percentage in range(1, 41):
                body = {"session_id": agent_id, "used_percentage": percentage}
                answer = client.post("/hooks/context-usage", json=body)
                assert answer.json() == {"status": "not_registered", "used_percentage": percentage}
                shown = serving.backend.load(agent_id).record.extra[MEMORY]
                assert shown["usedPercentage"] == percentage

        with ThreadPoolExecutor(len(AGENTS)) as pool:
            list(pool.map(post, AGENTS))
        assert (tmp_path / "states" / FILES[0]).exists()
        until = time.monotonic() + TIMEOUT_SECONDS
        while set(percentages(tmp_path / "states").values()) != {40.0}:
            assert time.monotonic() < until
    assert not (tmp_path / "states" / FILES[0]).exists()


def tokens_of(directory, agent_id):
    backend = LocalBackend(str(directory))
    memory = backend.load(agent_id).record.extra.get(MEMORY, {})
    backend.close()
    return memory.get("totalInputTokens") or 0


def kill_while_posting(served, known, posts):
    """Kill a server after so many posts; return by agent the last tokens that it answered."""
    answered = dict(known)
    secret = (served.state_directory / "hook.secret").read_text().strip()
    taken = threading.Semaphore(0)

    def post(agent_id):
        client = served.client(secret)
        for tokens in itertools.count(known[agent_id] + 1):
            body = {"session_id": agent_id, "used_percentage": 10, "total_input_tokens": tokens}
            try:
                answer = client.post("/hooks/context-usage", json=body)
            except httpx.HTTPError:
                return
            assert answer.json()["status"] == "not_registered"
            answered[agent_id] = tokens
            taken.release()

    with ThreadPoolExecutor(len(AGENTS)) as pool:
        posting = [pool.submit(post, agent_id) for agent_id in AGENTS]
        for _ in range(posts):
            assert taken.acquire(timeout=TIMEOUT_SECONDS)
        served.process.kill()
        for one in posting:
            one.result(TIMEOUT_SECONDS)
    return answered


def check_kills(directory, kills, seed):
    chance = random.Random(seed)
    directory.mkdir(mode=0o700)
    answered = dict.fromkeys(AGENTS, 0)
    logs = 0
    for number in range(kills + 1):
        with ServeProgram(state=directory) as served:
            if number == 0:
                for agent_id in AGENTS:
                    served.admin.post("/agents", json={"agentId": agent_id})
            known = {agent_id: tokens_of(directory, agent_id) for agent_id in AGENTS}
            for agent_id, tokens in answered.items():
                # One more may have been on its way.
                assert tokens <= known[agent_id] <= tokens + 1
            if number < kills:
                answered = kill_while_posting(served, known, chance.randrange(40, 240))
        logs += (directory / FILES[0]).exists()
    assert logs > kills / 2


def test_no_answered_reading_is_lost_by_a_kill(tmp_path):
    """A server is killed in the middle of posts, some times."""
    check_kills(tmp_path / "states", KILLS, seed=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_no_answered_reading_is_lost_by_many_kills(tmp_path):
    """The same 200 times."""
    check_kills(tmp_path / "states", MANY_KILLS, seed=2)
