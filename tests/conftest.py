"""Every test keeps its states in a directory of its own and sees no settings of the caller."""

import importlib
import math
import os
import secrets
import signal
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from helpers import ci_cases, durations, process_ways
from hypothesis import HealthCheck, settings

from ultramon.system.git import OTHER_REPOSITORY

TESTS = Path(__file__).resolve().parent
# A machine that is slow or full generates slowly, and says nothing about a test.
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("full", _PATIENT)
settings.register_profile("common", _PATIENT, max_examples=25)
settings.load_profile("common")

# A job in the background of a script ignores these, and so would every program under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# Images of containers switch bytecode off; each program under test would compile the package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Where a hook of git runs the tests, these would turn the git of each test on this repository.
for name in OTHER_REPOSITORY:
    os.environ.pop(name, None)


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run also what takes minutes")
    parser.addoption("--write-durations", action="store_true", help="measure which tests are slow")


def pytest_configure(config):
    # The workers of a parallel run report to the process that started them.
    if config.getoption("write_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(durations.Recorder())


def pytest_sessionstart(session):
    """Have each worker of a whole run import a part of the tests first.

    All collect every file: in a fresh checkout each would compile all of them at the same time,
    and so one finds what the others have compiled.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None or [Path(argument).resolve() for argument in session.config.args] != [TESTS]:
        return
    count = int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for path in sorted(TESTS.rglob("test_*.py"))[int(worker.removeprefix("gw")) :: count]:
        is_packaged = (path.parent / "__init__.py").exists()
        root = path.parents[1] if is_packaged else path.parent
        if str(root) not in sys.path:
            sys.path.insert(0, str(root))
        # What does not import is reported where it is collected.
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(f"{path.parent.name}.{path.stem}" if is_packaged else path.stem)


def uses_postgres(item):
    """Return whether a test gets a store in PostgreSQL: a thousand do, and each makes a schema."""
    given = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "postgres" in item.fixturenames or "postgres" in given


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config, items):
    """Leave out what `make ci-full` alone runs, mark what is slow, let the longest files begin."""
    seconds = durations.read_table()
    scopes = Counter({durations.ONE_AT_A_TIME: math.inf})
    for name, taken in seconds.items():
        scopes[durations.scope_of(name)] += taken
    for item in items:
        is_alone = durations.scope_of(item.nodeid) == durations.ONE_AT_A_TIME
        if is_alone or uses_postgres(item) or durations.function_of(item.nodeid) in seconds:
            item.add_marker("slow")
    rest = ci_cases.left_out([item.nodeid for item in items])
    for item in items:
        if item.nodeid in rest:
            item.add_marker("exhaustive")
    items.sort(key=lambda item: -scopes[durations.scope_of(item.nodeid)])
    if config.getoption("exhaustive"):
        return
    left_out = [item for item in items if item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Hand out files in their order: with the longest at the end one worker would be idle."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return durations.scope_of(nodeid)

        def add_node_collection(self, node, collection):
            if len(set(collection)) < len(collection):
                several = ", ".join(
                    name for name, tests in Counter(collection).items() if tests > 1
                )
                raise pytest.UsageError(f"of tests with one id only one would run: {several}")
            super().add_node_collection(node, collection)

    config.option.loadscopereorder = False
    return Scheduling(config, log)


@pytest.fixture(autouse=True)
def clean_environment(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("ULTRAMON_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("ANTHROPIC_1M_CONTEXT", raising=False)
    monkeypatch.setenv("ULTRAMON_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "no-configuration"))


@pytest.fixture(scope="session")
def mac_library(tmp_path_factory):
    """A library that answers on Linux as the one of macOS does."""
    return process_ways.compile_mac_library(tmp_path_factory.mktemp("mac"))


@pytest.fixture(params=process_ways.WAYS)
def process_way(request, monkeypatch):
    """Each way in which processes are found, with those before it switched off."""
    library = request.getfixturevalue("mac_library") if request.param == "libproc" else None
    process_ways.take(request.param, monkeypatch, library)
    yield request.param
    process_ways.forget()


@pytest.fixture(params=["memory", "file", "postgres"])
def store(request, tmp_path):
    """A backend of each kind that ultramon ships."""
    from ultramon.backends.local.backend import LocalBackend
    from ultramon.backends.memory import MemoryBackend
    from ultramon.backends.opening import open_backend

    if request.param == "memory":
        backend = MemoryBackend()
    elif request.param == "file":
        backend = LocalBackend(str(tmp_path / "state"))
    else:
        backend = open_backend(request.getfixturevalue("postgres_store"))
        # A message that the database takes too late is kept on this machine: it has no number then.
        backend.queue.patience_seconds = 30.0
    yield backend
    backend.close()


@pytest.fixture(params=["file", "postgres"])
def shared_store(request, monkeypatch, clean_environment):
    """Have `ULTRAMON_BACKEND` name a store that several processes can share, one of each kind."""
    if request.param == "postgres":
        monkeypatch.setenv("ULTRAMON_BACKEND", request.getfixturevalue("postgres_store"))
    return request.param


@pytest.fixture
def make(ultramon_monitor, store):
    """A factory of started monitors on each kind of backend."""
    return partial(ultramon_monitor, backend=store)


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    """A server over files that the tests of a module share."""
    from helpers.running_server import Serving

    with Serving(directory=tmp_path_factory.mktemp("state")) as serving:
        yield serving


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this process; where none is installed its tests are skipped."""
    from helpers.postgres_server import QUICK, Server

    server = Server(**QUICK)
    server.start()
    yield server
    server.remove()


@pytest.fixture
def postgres_store(postgres, monkeypatch):
    """Give the URL of a PostgreSQL store that no other test uses, its tables made.

    A start waits for as long as a machine with much to do may take; `network` takes that back.
    """
    import psycopg

    from ultramon.backends.postgres.admin.setup import migrate
    from ultramon.backends.postgres.backend import PostgresBackend

    monkeypatch.setattr("ultramon.backends.postgres.backend.START_TIMEOUT_SECONDS", 30.0)
    schema = f"test_{secrets.token_hex(6)}"
    url = postgres.url(schema)
    maker = PostgresBackend(url)
    migrate(maker.database)
    maker.close()
    yield url
    with psycopg.connect(postgres.url().partition("?")[0], autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA "{schema}" CASCADE')
