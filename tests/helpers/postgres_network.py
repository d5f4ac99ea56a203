"""A database behind a network that a test can cut, and waiting for what comes of it."""

from __future__ import annotations

import select
import time
from contextlib import suppress

import pytest

from helpers.postgres_worker import run_worker
from helpers.proxy import Proxy
from ultramon.backends.postgres.backend import PostgresBackend
from ultramon.backends.postgres.connection.database import DatabaseAwayError

PATIENCE_SECONDS = 60.0


def wait_until(condition):
    """Ask again and again, 100 times a second, until the answer is true; return it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, "it never came"
        select.select([], [], [], 0.01)
    return answer


@pytest.fixture
def work(tmp_path):
    """Start workers of one host, that is, of one state directory; none outlives the test."""
    started = []

    def run(url, mode, *arguments, state="state", **options):
        started.append(run_worker(url, mode, *arguments, state=tmp_path / state, **options))
        return started[-1]

    yield run
    for worker in started:
        worker.kill()
        worker.wait()
        for pipe in (worker.stdin, worker.stdout):
            with suppress(BrokenPipeError):
                pipe.close()


@pytest.fixture
def network(postgres, postgres_store, monkeypatch):
    """What lies between agents and the server."""
    monkeypatch.setattr("ultramon.backends.postgres.backend.START_TIMEOUT_SECONDS", 1.0)
    proxy = Proxy(postgres.port)
    proxy.url = postgres_store.replace(f":{postgres.port}/", f":{proxy.port}/")
    yield proxy
    proxy.close()


@pytest.fixture
def backend(network):
    """The store as agents see it, through the network."""
    backend = PostgresBackend(network.url)
    yield backend
    network.flow()
    backend.close()


@pytest.fixture
def direct(postgres_store):
    """The same store as others see it, whose network is never cut."""
    backend = PostgresBackend(postgres_store)
    backend.queue.patience_seconds = 30.0
    yield backend
    backend.close()


def answers(backend):
    """Return whether the database can be reached."""
    with suppress(DatabaseAwayError):
        backend.change_mark()
        return True
    return False


def is_drained(backend):
    """Return whether nothing waits on this machine, having the backend look."""
    backend.queue.sender.wake()
    return backend.outbox.kept()[:2] == (0, 0)
