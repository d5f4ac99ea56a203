"""Lists of states of every kind: what each line says, and what is left out."""

import json
import os
import subprocess
import sys

import pytest
from helpers.program import run
from helpers.state_kinds import write_states

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli import agent_list
from ultramon.cli.views import tmux_line
from ultramon.state.observed import checked_json
from ultramon.testing import FakeClock
from ultramon.testing.clock import START

COUNT = 275

WRITER = """
import sys, threading
from ultramon.backends.local.state_files import StateDirectory
from ultramon.testing import make_record

files, number = StateDirectory(sys.argv[1]), 0
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.is_set():
    number += 1
    for agent in range(0, 270, 3):
        record = make_record(f"agent-{agent:05}", label=str(number), usage_ratio=number / 1e6)
        record.cumulative_chars = record.tasks_completed = number
        files.replace(record, durable=False)
    print(number, flush=True)
"""


@pytest.fixture
def backend(tmp_path, monkeypatch):
    """A store with states of every kind."""
    clock = FakeClock()
    for module in (agent_list, tmux_line):
        monkeypatch.setattr(module, "SYSTEM_CLOCK", clock)
    write_states(str(tmp_path / "subagents"), COUNT, START)
    os.chmod(tmp_path, 0o700)
    backend = LocalBackend(str(tmp_path))
    yield backend
    backend.close()


@pytest.mark.parametrize("run_name", [None, "b"])
@pytest.mark.parametrize("show_all", [False, True])
def test_a_list_of_lines_is_the_list_of_a_table(backend, run_name, show_all):
    """The same agents in the same order, the same left out and unreadable."""

    def listed():
        return agent_list.AgentList(backend, run_name, show_all=show_all, with_news=False)

    lines, table = listed(), listed()
    shown = [json.loads(line) for line in lines.lines()]
    table.refresh()
    assert len(shown) > 10
    assert shown == [checked_json(one) for one in table.seen]
    assert sorted(lines.unreadable) == sorted(table.unreadable)
    assert (lines.hidden, lines.left_out, +lines.verdicts) == (table.hidden, 0, +table.verdicts)


@pytest.mark.parametrize("run_name", [None, "b"])
def test_a_line_for_a_status_bar_counts_what_a_table_shows(backend, run_name):
    """A state that is only glanced at is judged as one that is decoded, but for its sense."""
    verdicts, nearest, needing, problems, _ = tmux_line._list(backend, run_name)
    found = agent_list.AgentList(backend, run_name, show_all=True, with_news=False)
    found.refresh()
    living = [one for one in found.seen if one.liveness.verdict in ("alive", "stale")]
    assert nearest.record.agent_id == min(living, key=tmux_line._nearness).record.agent_id
    assert needing == sum(bool(tmux_line.need_of(one)) for one in living)
    assert verdicts.total() + problems == len(found.seen) + len(found.unreadable)


def test_lists_are_right_while_agents_write(backend, tmp_path):
    """Each line is one state that was written, never older than one that was shown before."""
    shown: dict[str, int] = {}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        for _ in range(6):
            writer.stdout.readline()
            found = agent_list.AgentList(backend, None, show_all=True, with_news=False)
            for one in map(json.loads, found.lines()):
                if not (one["label"] or "").isdigit():
                    continue
                number = one["tasksCompleted"]
                assert (one["cumulativeChars"], one["label"]) == (number, str(number))
                assert shown.get(one["agentId"], 0) <= number
                shown[one["agentId"]] = number
            tmux_line._list(backend, None)
        writer.communicate(b"")
    assert len(shown) == 90


def test_a_list_is_one_document_with_an_agent_a_line(backend):
    """Also where none is shown."""
    states = backend.directory.path
    whole = run("status", "--json", "--all", "--state-dir", states).stdout
    agents = json.loads(whole)["agents"]
    assert [
        json.loads(line.rstrip(",")) for line in whole.splitlines()[2 : 2 + len(agents)]
    ] == agents
    nobody = run("status", "--json", "--run", "no-such", "--state-dir", states).stdout
    assert json.loads(nobody)["agents"] == []


def test_what_lists_of_an_earlier_version_kept_is_deleted(backend, tmp_path):
    """By a prune, and by the next agent that starts; other files in its place stay."""
    folder = tmp_path / "index"
    for name in ("heads", "texts", "texts.abc.tmp", "mine"):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
    run("backend", "prune", "--state-dir", str(tmp_path), "--dry-run")
    assert len(list(folder.iterdir())) == 4
    run("backend", "prune", "--state-dir", str(tmp_path))
    assert [path.name for path in folder.iterdir()] == ["mine"]
    (folder / "mine").rename(folder / "heads")
    backend.directory.sweep(START)
    assert not folder.exists()
