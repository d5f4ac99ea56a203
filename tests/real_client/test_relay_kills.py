"""Relays of real clients that are killed at random moments: the relay, its client, or both."""

import os
import random
import signal
import subprocess
import threading
from contextlib import ExitStack, nullcontext, suppress

import pytest
from helpers.client_relay import SETTINGS
from helpers.program import PROGRAM
from helpers.relayed import end_contexts, ended_at_last, finish, marks_of

from real_client.client import MODEL, Client, one_at_a_time
from real_client.item_agent import NO_FILE, ItemAgent
from real_client.item_job import GOAL, RULES, ItemJob
from real_client.test_relay_clients import OTHERS
from ultramon.relay.runs.context_process import find_leader

pytestmark = [pytest.mark.real_client, pytest.mark.timeout(600)]

RELAY, CLIENT, BOTH = "relay", "client", "both"
RESULTS = {"codex": b'"type":"turn.completed"'}
"""What a client prints when its turn is over, where it is not the usual result."""
_RESULT = b'"type":"result"'
_ITEMS = 4


class KilledRelay:
    """A job, and relays of it by one client.

    Args:
        directory: For all of it.
        agent: The client.
    """

    def __init__(self, directory, agent):
        self.agent, self.state = agent, directory / "state"
        self._mark = RESULTS.get(agent, _RESULT)
        if agent == "claude":
            self.model = ItemAgent(directory / "configuration", RULES, {"part 02": NO_FILE})
            client = Client(directory, self.model)
            environ, program = client.environment(), client.program
            self._given, project = ("--model", MODEL), client.project
        else:
            client, self.model, variables = OTHERS[agent](directory / agent, lambda: False)
            environ, program = client.environ(**variables), client.program
            self._given, project = SETTINGS[agent], directory / "job"
            project.mkdir()
        self._environ = environ | {
            "PATH": os.pathsep.join((os.path.dirname(PROGRAM), os.environ["PATH"])),
            "ULTRAMON_STATE_DIR": str(self.state),
        }
        self._program = str(program)
        self.job = ItemJob(project, _ITEMS)
        if agent == "gemini":
            assert client.ultramon("install", "gemini", "--force").returncode == 0

    def begin(self):
        """Start a relay."""
        rules = [word for rule in RULES for word in ("--rule", rule)]
        given = ("--agent", self.agent, "--program", self._program, *rules)
        given += ("--items", "items.txt", "--verify", self.job.check_command)
        return self._start(GOAL, "--run", "job", *given, extra=("--", *self._given))

    def resume(self):
        """Start a relay that continues by itself."""
        return self._start("--resume", "job")

    def _start(self, *arguments, extra=()):
        return subprocess.Popen(
            [PROGRAM, "relay", *arguments, "--json", *extra],
            cwd=self.job.directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def requests(self):
        """How often the model was asked."""
        return len(self.model.measured if self.agent == "claude" else self.model.prompts)

    def results(self):
        """How many contexts have printed that their turn is over."""
        outputs = self.state.glob("relay/job/contexts/*.out")
        return sum(self._mark in path.read_bytes() for path in outputs)

    def kill_client(self):
        """Kill the process of a context; return whether there was one."""
        leader = find_leader({**marks_of(self.state), "ULTRAMON_RUN": "job"})
        with suppress(ProcessLookupError):
            if leader is not None:
                os.killpg(leader, signal.SIGKILL)
                return True
        return False


def comes(count, most, relay):
    """Wait until a number has grown so far; return whether it did before the relay ended."""
    while count() < most:
        if relay.poll() is not None:
            return False
        threading.Event().wait(0.002)
    return True


def carry(killed, seed):
    """Carry the job on through one kill of each kind; return the last relay, and the kills."""
    chance = random.Random(seed)
    victims = chance.sample((RELAY, CLIENT, BOTH), 3)
    after_result = chance.randrange(3)
    kills = []
    with ExitStack() as relays:
        relay = relays.enter_context(ended_at_last(killed.begin()))
        for number, victim in enumerate(victims):
            if number == after_result:
                is_there = comes(killed.results, killed.results() + 1, relay)
            else:
                asked = killed.requests() + chance.randint(1, 4)
                is_there = comes(killed.requests, asked, relay)
                threading.Event().wait(chance.uniform(0, 0.3))  # any moment
            if not is_there:
                break
            if victim != CLIENT:
                relay.kill()
                relay.communicate()
            was_alive = victim == RELAY or killed.kill_client()
            if victim != CLIENT:
                relay = relays.enter_context(ended_at_last(killed.resume()))
            if was_alive or victim != CLIENT:
                kills.append(victim + " after a result" * (number == after_result))
        return (*finish(relay, 300), kills)


@pytest.mark.parametrize(
    "agent",
    [
        "claude",
        pytest.param("codex", marks=pytest.mark.exhaustive),
        pytest.param("gemini", marks=pytest.mark.exhaustive),
        pytest.param("qwen", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize(
    "seed",
    [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (0, *range(2, 40)))],
)
def test_a_run_that_is_killed_needs_nobody(tmp_path, record_property, agent, seed):
    """Started again after its own kills, it continues after those of its client, to the end."""
    with one_at_a_time() if agent == "claude" else nullcontext():
        killed = KilledRelay(tmp_path, agent)
        try:
            code, result, told, kills = carry(killed, seed)
        finally:
            end_contexts(killed.state)
            killed.model.close()
    record_property("kills", ", ".join(kills))
    assert code == 0, (kills, told)
    assert (result["work"]["ok"], result["work"]["lost"]) == (True, []), kills
    assert killed.job.verified(killed.state / "relay" / "job" / "worktree") == set(killed.job.items)
    lied = agent == "claude"
    assert killed.model.begun.total() <= _ITEMS + len(kills) + lied, kills
