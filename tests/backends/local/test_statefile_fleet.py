"""What a fleet does with agents' files: looking at them again, leaving requests beside them."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import pytest
from helpers.fault_writer import AGENT, NOW, make_record, start

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.errors import AgentNotFoundError, StateCorruptError, StateWriteError
from ultramon.state.record import encode_state

REQUEST = {"kind": "return"}
GOOD = encode_state(make_record(AGENT), AGENT)


@pytest.fixture
def files(tmp_path):
    directory = StateDirectory(str(tmp_path / "state"))
    directory.prepare()
    return directory


def write(files, record):
    with files.locked(record.agent_id, 1.0):
        files.replace(record, durable=True)


def names(files, part=""):
    return sorted(name for name in os.listdir(files.folder) if part in name)


def test_a_look_opens_only_what_changed(files, monkeypatch):
    """States that stayed as they were are not opened again, those of other runs neither."""
    backend, seen, opened = LocalBackend(files.path), {}, []
    for number in range(3):
        start(backend, f"{AGENT}-{number}", run=f"run-{number}")
    assert len(backend.changes("run-0", seen).changed) == 1
    really_open = os.open

    def noting_open(path, *arguments, **options):
        opened.append(path)
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", noting_open)
    assert backend.changes("run-0", seen)[:2] == ([], [])
    assert opened == []
    files.beat(f"{AGENT}-0", NOW)
    Path(files.file(f"{AGENT}-1")).write_bytes(b"torn")
    assert [agent.agent_id for agent in backend.changes("run-0", seen).changed] == [f"{AGENT}-1"]
    assert opened == [files.file(f"{AGENT}-1")]


def test_a_refusal_of_the_system_is_said_once_and_tried_again(files, monkeypatch):
    """A state that could not be opened for a moment is seen later though it did not change."""
    backend, seen = LocalBackend(files.path), {}
    write(files, make_record(AGENT))

    def refuse(path, *_arguments, **_options):
        raise OSError(errno.EMFILE, "Too many open files", path)

    with monkeypatch.context() as broken:
        broken.setattr(os, "open", refuse)
        (agent,) = backend.changes(None, seen).changed
        assert "Too many open files" in str(agent.problem)
        assert backend.changes(None, seen).changed == []
    (agent,) = backend.changes(None, seen).changed
    assert agent.record.agent_id == AGENT
    assert backend.changes(None, seen).changed == []


def test_a_state_missing_in_the_listing_is_not_gone(files, monkeypatch):
    """A file that is replaced while the folder is listed may be passed over; it is looked up."""
    backend, seen = LocalBackend(files.path), {}
    write(files, make_record(AGENT))
    backend.changes(None, seen)
    with monkeypatch.context() as racing:
        racing.setattr(os, "scandir", lambda _path: nullcontext(iter(())))
        assert backend.changes(None, seen) == ([], [], {})
    assert backend.changes(None, seen)[:2] == ([], [])


def test_a_state_under_an_impossible_name_is_listed_with_its_problem(files):
    """A file that no agent could have written hides nobody and is named."""
    write(files, make_record(AGENT))
    Path(files.folder, "no name.json").write_bytes(GOOD)
    backend, seen = LocalBackend(files.path), {}
    problems = {agent.agent_id: agent.problem for agent in backend.changes(None, seen).changed}
    assert problems[AGENT] is None
    assert isinstance(problems["no name"], StateCorruptError)
    Path(files.folder, "no name.json").unlink()
    assert backend.changes(None, seen)[:2] == ([], ["no name"])


def plant_elsewhere(path, link):
    other = path.with_name("elsewhere")
    other.write_text('{"kind":"return"}')
    link(other, path)


PLANTS = {
    "empty": lambda path: path.write_bytes(b""),
    "torn": lambda path: path.write_bytes(b'{"kind":"ret'),
    "not UTF-8": lambda path: path.write_bytes(b'{"kind":"\xff"}'),
    "a list": lambda path: path.write_bytes(b"[1]"),
    "deeply nested": lambda path: path.write_bytes(b"[" * 100_000),
    "1 GB, sparse": lambda path: (path.touch(), os.truncate(path, 1 << 30)),
    "directory": lambda path: path.mkdir(),
    "FIFO": os.mkfifo,
    "symlink": lambda path: plant_elsewhere(path, os.symlink),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
def test_what_is_no_request_counts_as_none_and_stays(files, plant):
    """Whatever lies in a request's place is neither followed nor read on and on, nor deleted."""
    write(files, make_record(AGENT))
    path = Path(files.file(AGENT, ".request"))
    plant(path)
    before = path.lstat()
    assert files.get_request(AGENT) is None
    assert path.lstat()[:2] == before[:2]


def test_a_request_with_a_second_name_is_read(files):
    """A backup by hard links loses no request."""
    write(files, make_record(AGENT))
    plant_elsewhere(Path(files.file(AGENT, ".request")), os.link)
    assert files.get_request(AGENT) == {"kind": "return"}


@pytest.mark.parametrize("plant", [plant for name, plant in PLANTS.items() if name != "directory"])
def test_the_next_request_replaces_what_is_none(files, plant):
    """A request can be left whatever lies in its place; the target of a link is untouched."""
    write(files, make_record(AGENT))
    path = Path(files.file(AGENT, ".request"))
    plant(path)
    files.put_request(AGENT, REQUEST, 1.0)
    assert files.get_request(AGENT) == REQUEST
    assert stat.S_ISREG(path.lstat().st_mode)
    for other in path.parent.glob("elsewhere"):
        assert other.read_text() == '{"kind":"return"}'


def test_a_directory_in_the_place_of_a_request_is_a_typed_error(files):
    """What cannot be replaced or deleted is said, and nothing is left behind."""
    write(files, make_record(AGENT))
    Path(files.file(AGENT, ".request")).mkdir()
    for request in (REQUEST, None):
        with pytest.raises(StateWriteError, match="cannot be"):
            files.put_request(AGENT, request, 1.0)
    assert names(files, ".tmp") == []


def test_a_request_is_private_and_leaves_no_temporary_file(files):
    """It has mode 0600 under any umask, and lies beside the state."""
    write(files, make_record(AGENT))
    before = os.umask(0)
    try:
        files.put_request(AGENT, REQUEST, 1.0)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.lstat(files.file(AGENT, ".request")).st_mode) == 0o600
    assert names(files) == [f"{AGENT}.json", f"{AGENT}.lock", f"{AGENT}.request"]
    files.put_request(AGENT, None, 1.0)
    assert names(files) == [f"{AGENT}.json", f"{AGENT}.lock"]


def test_an_unknown_agent_is_left_no_file(files):
    """A request to nobody leaves neither lock nor temporary file behind."""
    with pytest.raises(AgentNotFoundError):
        files.put_request(AGENT, REQUEST, 1.0)
    assert names(files) == []


@pytest.mark.parametrize("value", [float("nan"), object(), "x" * (1 << 20)], ids=type)
def test_a_request_that_cannot_be_read_back_is_not_written(files, value):
    """It is refused typed, and the older request stays."""
    write(files, make_record(AGENT))
    files.put_request(AGENT, REQUEST, 1.0)
    with pytest.raises(StateWriteError, match="the request has"):
        files.put_request(AGENT, {"value": value}, 1.0)
    assert files.get_request(AGENT) == REQUEST


def test_a_request_waits_for_the_lock_and_gives_up(files):
    """While the agent is locked the request is refused, and the older one stays."""
    write(files, make_record(AGENT))
    with files.locked(AGENT, 1.0), pytest.raises(StateWriteError, match="is locked"):
        files.put_request(AGENT, REQUEST, 0.0)
    assert names(files, ".request") == names(files, ".tmp") == []


def test_requests_of_agents_with_confusing_names_stay_apart(files):
    """An agent may be called like another one's file; neither evidence nor removal takes both."""
    twins = [AGENT, f"{AGENT}.request", f"{AGENT}.json", f"{AGENT}.json.corrupt-1"]
    for agent_id in twins:
        write(files, make_record(agent_id))
        files.put_request(agent_id, {"for": agent_id}, 1.0)
    for _ in range(4):
        Path(files.file(AGENT)).write_bytes(b"torn")
        files.quarantine(AGENT)
    assert [files.get_request(agent_id) for agent_id in twins] == [{"for": id_} for id_ in twins]
    assert files.list_ids() == sorted(twins[1:])
    files.remove(AGENT)
    assert files.get_request(AGENT) is None
    assert [files.get_request(id_) for id_ in twins[1:]] == [{"for": id_} for id_ in twins[1:]]
