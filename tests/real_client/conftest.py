"""What the tests with the real client start from."""

import os
import signal
from contextlib import suppress

import pytest
from helpers import program

from real_client.api import Api
from real_client.client import Client, one_at_a_time
from real_client.watch import States
from ultramon import Fleet
from ultramon.backends.local.backend import LocalBackend
from ultramon.hosts.resident.place import Place


@pytest.fixture
def states(tmp_path):
    """The agents that the hooks write down."""
    return States(tmp_path / "state")


@pytest.fixture
def api(states):
    """A stand-in API that sees all states at each request; each step is played, none is missing."""
    api = Api(states.all)
    yield api
    api.close()
    assert not api.unscripted, "the client asked more often than the test has steps"
    assert not api.left()


@pytest.fixture
def client(tmp_path, api):
    """A client without any installation."""
    with one_at_a_time():
        yield Client(tmp_path, api)


@pytest.fixture
def install(client, states):
    """Install our hooks as a user does, with other arguments if wanted."""

    def install(*arguments):
        # The interpreter of this project's tests lives in its own venv.
        done = program.run_process(
            "install", "claude-code", "--force", *arguments,
            HOME=str(client.home),
            CLAUDE_CONFIG_DIR=str(client.configuration),
            ULTRAMON_STATE_DIR=str(states.directory),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return client

    yield install
    # Where no test names another folder of sockets.
    if running := Place(str(states.directory), {}).running():
        with suppress(ProcessLookupError):
            os.kill(running["pid"], signal.SIGKILL)


@pytest.fixture
def installed(install):
    """A client with our hooks."""
    return install()


@pytest.fixture
def fleet(states):
    """An orchestrator that looks after the sessions."""
    backend = LocalBackend(str(states.directory))
    fleet = Fleet("claude-code", backend=backend)
    yield fleet
    fleet.close()
    backend.close()
