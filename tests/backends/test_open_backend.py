"""Which store a URL, a path or ULTRAMON_BACKEND names, and what is refused."""

import sys
from functools import partial
from pathlib import Path

import pytest
from helpers.distributions import write_distribution

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
    """The error names no argument that was never given."""
    pytest.importorskip("psycopg")
    monkeypatch.setenv("ULTRAMON_BACKEND", "postgresql://a@b/c?schema=No!")
    with pytest.raises(ConfigurationError, match=r"schema=.* \(from ULTRAMON_BACKEND\) is not"):
        open_backend()


# --- stores of other distributions


@pytest.fixture
def distribute(tmp_path, monkeypatch):
    """Install a distribution beside ultramon that offers a store."""
    packages = tmp_path / "packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    yield partial(write_distribution, packages, "acme-store", "ultramon.backends")
    sys.modules.pop("acme_store", None)


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("import no_such_module", r"cannot be opened \(ModuleNotFoundError: .*no_such_module"),
        ("def opened(url): raise OSError('away')", r"cannot be opened \(OSError: away\)"),
        ("def opened(url): return url", "lacks url, start_agent, record, heartbeat, load, "),
    ],
)
def test_a_broken_store_is_refused_by_the_name_of_its_distribution(distribute, code, problem):
    """All that it lacks at once; a password of the URL is not shown."""
    distribute(code, "acme = acme_store:opened")
    with pytest.raises(ConfigurationError, match=f"that of acme-store {problem}") as caught:
        open_backend("acme://me:secret@host/x")
    assert "secret" not in str(caught.value)


def test_an_unknown_scheme_is_refused_with_those_that_are_installed(distribute):
    """A misspelt scheme is seen beside the right one."""
    distribute("", "acme = acme_store:opened", "jsonl = acme_store:opened")
    with pytest.raises(ConfigurationError, match=r"absolute path, or one of acme:, jsonl:$"):
        open_backend("json:///var/agents")


def test_a_built_in_store_cannot_be_replaced(distribute, tmp_path):
    """Whatever a distribution offers under its name."""
    code = "def opened(url): raise SystemExit(url)"
    distribute(code, *(f"{name} = acme_store:opened" for name in ("file", "memory", "nonsense")))
    assert isinstance(open_backend(f"file://{tmp_path}/s"), LocalBackend)
    for url in ("memory:x", "memory://", "file:state", "nonsense"):
        with pytest.raises(ConfigurationError, match="must be file:///"):
            open_backend(url)
