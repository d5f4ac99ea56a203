"""Which store a URL, a path or ULTRAMON_BACKEND names, and what is refused."""

from pathlib import Path

import pytest

from ultramon import ConfigurationError, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.memory import MemoryBackend
from ultramon.backends.opening import open_backend

ALLOWED = "file:///directory, memory:, postgresql://user@host/database or an absolute path"


@pytest.mark.parametrize(
    ("url", "directory"),
    [
        ("file://{here}/a%20b", "{here}/a b"),
        ("file://localhost{here}/state", "{here}/state"),
        ("{here}/state", "{here}/state"),
        ("{here}/a#b?c", "{here}/a#b?c"),
        ("./state", "{here}/state"),
        ("..", "{parent}"),
        ("~/state", "{here}/home/state"),
    ],
)
def test_a_directory_is_a_store_of_files(monkeypatch, tmp_path, url, directory):
    """As a URL, or as a path that can be nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    names = {"here": tmp_path, "parent": tmp_path.parent}
    backend = open_backend(url.format(**names))
    assert isinstance(backend, LocalBackend)
    assert Path(backend.directory.path) == Path(directory.format(**names))


def test_memory_is_a_store_of_this_process():
    """The same one for the same URL."""
    assert isinstance(open_backend("memory:"), MemoryBackend)
    assert open_backend("memory:") is open_backend("memory:")


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "memory",
        "state/here",
        "file:state",
        "file://host/state",
        "sqlite:///x",
        "http://[",
    ],
)
@pytest.mark.parametrize("source", ["argument", "ULTRAMON_BACKEND"])
def test_what_names_no_store_is_refused_with_the_allowed_forms(monkeypatch, tmp_path, url, source):
    """A misspelt store would silently be a directory in the working directory of the agent."""
    monkeypatch.chdir(tmp_path)
    if source == "argument":
        with pytest.raises(ConfigurationError) as caught:
            open_backend(url)
    else:
        monkeypatch.setenv(source, url)
        with pytest.raises(ConfigurationError) as caught:
            create_context_monitor("scout-1")
    error = caught.value
    assert (error.name, error.allowed, error.source) == ("backend", ALLOWED, source)
    assert list(tmp_path.iterdir()) == []


def test_a_bad_database_url_is_blamed_on_the_variable_it_came_from(monkeypatch):
    """Nobody looks for an argument that was never given."""
    pytest.importorskip("psycopg")
    monkeypatch.setenv("ULTRAMON_BACKEND", "postgresql://a@b/c?schema=No!")
    with pytest.raises(ConfigurationError, match=r"schema=.* \(from ULTRAMON_BACKEND\) is not"):
        open_backend()
