"""Readings that are posted at the same time: each is in its state file before it is answered."""

import itertools
import json
import random
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers import DATA
from helpers.program import run
from helpers.running_server import ServeProgram, Serving

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import StateWriteError
from ultramon.server.earlier_log import FILES, LOCK, store_earlier_log
from ultramon.server.posted_agents import MEMORY, PostedAgents
from ultramon.system.files import open_private
from ultramon.system.locks import Lock

AGENTS = [f"agent-{number}" for number in range(8)]
TIMEOUT_SECONDS = 60
KILLS = 3
MANY_KILLS = 200
EARLIER = DATA / "earlier_log"
"""What a server of commit 28d5cda left when it was killed: states, both files of its log, and as
`answered.json` the states with every reading that it had answered."""


# --- the log of an earlier version


@pytest.fixture
def states(tmp_path):
    """A state directory as that server left it."""
    states = tmp_path / "states"
    (states / "subagents").mkdir(parents=True, mode=0o700)
    for path in EARLIER.glob("agent-*.json"):
        shutil.copy(path, states / "subagents")
    for name in FILES:
        shutil.copy(EARLIER / name, states)
    (states / LOCK).touch()
    for path in (states, *states.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return states


@pytest.fixture
def backend(states):
    backend = LocalBackend(str(states))
    yield backend
    backend.close()


EARLIER_TURNS = 18
"""So many the earlier server kept of a window; its forecast was one number."""


def answered():
    states = json.loads((EARLIER / "answered.json").read_bytes())
    return {agent_id: without_forecast(state) for agent_id, state in states.items()}


def stored(backend):
    return {one.agent_id: without_forecast(one.record.to_json()) for one in backend.list_agents()}


def without_forecast(state):
    """A state as both versions write it."""
    posted = dict(state["posted"]) if state.get("posted") else {}
    if "turns" in posted:
        posted["turns"] = posted["turns"][-EARLIER_TURNS:]
    return {**state, "forecast": None, "posted": posted}


def left_of_log(states):
    return sorted(path.name for path in states.glob("posts*"))


def test_what_an_earlier_server_answered_is_stored_at_the_first_start(states, backend):
    """Every state as that server would have written it; nothing of the log stays."""
    assert stored(backend) != answered()
    with Serving(directory=states):
        assert stored(backend) == answered()
        assert left_of_log(states) == []
    assert stored(backend) == answered()


def test_a_log_is_stored_once(states, backend):
    """A kill between the states and the deletion of the log: it is stored in vain again."""
    store_earlier_log(str(states), PostedAgents(backend).retake)
    before = stored(backend)
    for name in FILES:
        shutil.copy(EARLIER / name, states)
        (states / name).chmod(0o600)
    store_earlier_log(str(states), PostedAgents(backend).retake)
    assert stored(backend) == before == answered()
    assert left_of_log(states) == []


def test_a_server_that_still_writes_its_log_keeps_it(states, backend):
    with Lock(str(states / LOCK), open_private, 0.0):
        store_earlier_log(str(states), PostedAgents(backend).retake)
    assert left_of_log(states) == [*FILES, LOCK]
    assert stored(backend) != answered()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_line_ends_the_log(states, backend, cut):
    """A write that a power cut tore was not answered; what stands before it was."""
    path = states / FILES[1]
    data = path.read_bytes()
    last = data.rstrip(b"\0").rindex(b"\n", 0, -1) + 1
    path.write_bytes(data[: last + cut] + bytes(len(data) - last - cut))
    store_earlier_log(str(states), PostedAgents(backend).retake)
    found, expected = stored(backend), answered()
    assert found.pop("agent-2")["seq"] == expected.pop("agent-2")["seq"] - 1
    assert found == expected


def test_a_later_agent_of_the_same_id_gets_no_reading_of_the_former(states, backend):
    """It was deleted, and began anew; and one that has ended stays as it ended."""
    posted = PostedAgents(backend)
    backend.directory.remove("agent-0")
    posted.start("agent-0", 1_800_000_000.0)
    posted.finish("agent-1", "completed", 1_800_000_000.0)
    before = stored(backend)
    store_earlier_log(str(states), posted.retake)
    expected = before | {"agent-2": answered()["agent-2"]}
    assert stored(backend) == expected


class FullBackend(LocalBackend):
    """Has no room for states until it is given some."""

    is_full = False

    def record(self, record, events, *, durable):
        if self.is_full:
            raise StateWriteError(self.directory.path, "No space left on device")
        return super().record(record, events, durable=durable)


def test_a_log_that_cannot_be_stored_stays(states):
    """The start fails and says why; the next one stores it."""
    backend = FullBackend(str(states))
    backend.is_full = True
    with pytest.raises(StateWriteError, match="No space left"):
        store_earlier_log(str(states), PostedAgents(backend).retake)
    assert left_of_log(states) == [*FILES, LOCK]
    backend.is_full = False
    store_earlier_log(str(states), PostedAgents(backend).retake)
    assert stored(backend) == answered()
    backend.close()


@pytest.mark.parametrize("command", [("backend", "prune"), ("doctor",)])
def test_prune_and_doctor_name_a_log_and_leave_it(states, command):
    done = run(*command, "--state-dir", states)
    said = done.stdout + done.stderr
    assert said.count("posts-0.log holds readings of an earlier version") == 1
    assert said.count("start `ultramon serve` once") == len(FILES)
    assert left_of_log(states) == [*FILES, LOCK]


def test_an_unreadable_state_costs_only_its_own_readings(states, backend, caplog):
    (states / "subagents" / "agent-0.json").write_bytes(b"torn")
    store_earlier_log(str(states), PostedAgents(backend).retake)
    assert "readings of agent agent-0 are lost" in caplog.text
    found = without_forecast(backend.load("agent-1").record.to_json())
    assert found == answered()["agent-1"]
    assert left_of_log(states) == []


# --- a server on a socket


def test_posts_at_the_same_time_are_stored_before_their_answers(tmp_path):
    """What the server answered another process reads at once."""
    with Serving(directory=tmp_path / "states") as serving:
        for agent_id in AGENTS:
            assert serving.admin.post("/agents", json={"agentId": agent_id}).status_code == 201

        def post(agent_id):
            client = serving.client(serving.services.hook_secret)
            reader = LocalBackend(str(tmp_path / "states"))
            for percentage in range(1, 41):
                body = {"session_id": agent_id, "used_percentage": percentage}
                answer = client.post("/hooks/context-usage", json=body)
                assert answer.json() == {"status": "not_registered", "used_percentage": percentage}
                shown = reader.load(agent_id).record.extra[MEMORY]
                assert shown["usedPercentage"] == percentage
            reader.close()

        with ThreadPoolExecutor(len(AGENTS)) as pool:
            list(pool.map(post, AGENTS))


def test_posts_about_one_agent_at_the_same_time_are_all_counted(tmp_path):
    """None overwrites another one's state."""
    with Serving(directory=tmp_path / "states") as serving:
        assert serving.admin.post("/agents", json={"agentId": "one"}).status_code == 201
        before = serving.backend.load("one").record.seq

        def post(number):
            client = serving.client(serving.services.hook_secret)
            for step in range(10):
                body = {"session_id": "one", "used_percentage": 1 + number + step / 10}
                assert client.post("/hooks/context-usage", json=body).status_code == 200

        with ThreadPoolExecutor(len(AGENTS)) as pool:
            list(pool.map(post, range(len(AGENTS))))
        assert serving.backend.load("one").record.seq == before + 10 * len(AGENTS)


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
        try:
            for _ in range(posts):
                assert taken.acquire(timeout=TIMEOUT_SECONDS)
        finally:
            served.process.kill()  # else the pool waits for posts that never fail
        for one in posting:
            one.result(TIMEOUT_SECONDS)
    return answered


def check_kills(directory, kills, seed):
    chance = random.Random(seed)
    directory.mkdir(mode=0o700)
    answered = dict.fromkeys(AGENTS, 0)
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


def test_no_answered_reading_is_lost_by_a_kill(tmp_path):
    """A server is killed in the middle of posts, some times."""
    check_kills(tmp_path / "states", KILLS, seed=1)


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_no_answered_reading_is_lost_by_many_kills(tmp_path):
    """The same 200 times."""
    check_kills(tmp_path / "states", MANY_KILLS, seed=2)
