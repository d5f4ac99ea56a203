"""The looks beside a program's own work: both at once, or none where a setting is wrong."""

import threading
import time
from contextlib import closing

import pytest
from helpers.noted_program import NotedProgram

from ultramon.backends.local.backend import LocalBackend
from ultramon.errors import ConfigurationError
from ultramon.fleet.background_looks import background_looks
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit


@pytest.fixture
def backend(tmp_path):
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    with closing(LocalBackend(str(path))) as backend:
        yield backend


def names():
    return {one.name for one in threading.enumerate()} & {"ultramon-levels", "ultramon-commands"}


def test_a_level_that_is_announced_runs_its_command(backend, tmp_path, monkeypatch):
    """The last look at events comes after the last one at levels, so that none is missed."""
    program = NotedProgram(tmp_path)
    settings = tmp_path / "own.toml"
    settings.write_text(f'[on.plan]\nrun = ["{program.path}", "{{event}}"]\n')
    monkeypatch.setenv("ULTRAMON_CONFIG", str(settings))
    directory, now = backend.directory.path, time.time()
    limits = [plan_limit(FIVE_HOURS, 96, now + 3_600, now)]
    PlanLimits(directory).record("claude-code", "/srv/.claude", limits, now)
    has_looked = threading.Event()

    def look(_):
        has_looked.set()
        return ()

    with background_looks(backend, directory, "test", [look]):
        assert names() == {"ultramon-levels", "ultramon-commands"}
        assert has_looked.wait(30)
    assert program.calls == [["plan"]]
    assert names() == set()


def test_a_wrong_setting_starts_nothing(backend, tmp_path, monkeypatch):
    """Of plans or of commands: the program that would look says so before its own work."""
    settings = tmp_path / "own.toml"
    monkeypatch.setenv("ULTRAMON_CONFIG", str(settings))
    for text in ("[plan]\nlevels = 3\n", "[on.plan]\nrun = 3\n"):
        settings.write_text(text)
        with (
            pytest.raises(ConfigurationError),
            background_looks(backend, backend.directory.path, "test"),
        ):
            raise AssertionError("it has begun")
        assert names() == set()
