"""What `ultramon watch` prints: a line per change, JSON lines, a line for a status bar."""

import json
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest
from helpers.program import PROGRAM, environment, run
from helpers.pty_screen import PATIENCE_SECONDS
from test_cli_status import store
from test_cli_watch import AGES, agent, everything  # noqa: F401 - a fixture

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.agent_list import AgentList


def piped(directory, *arguments):
    """The program with its output in a pipe."""
    return subprocess.Popen(
        [PROGRAM, "watch", "--state-dir", str(directory), "--interval", "0.1", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        env=environment(),
    )


def line_with(process, words):
    """Read on to the line that has them."""
    for line in process.stdout:
        if words in line:
            return line
    raise AssertionError(process.stderr.read())


def test_into_a_pipe_each_change_is_printed(tmp_path, agent):
    """A snapshot with its time per change, none for a heartbeat; Ctrl-C ends it well."""
    with agent("scout") as scout, piped(tmp_path) as process:
        assert re.fullmatch(r"--- \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\n", process.stdout.readline())
        assert "unknown" in line_with(process, "scout")
        scout.update_heartbeat()
        scout.report_usage(input_tokens=750)
        assert process.stdout.readline().startswith("--- ")
        assert "750 of 1,000" in line_with(process, "scout")
        process.send_signal(signal.SIGINT)
        rest, words = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, rest, words) == (0, "", "")


def test_json_has_one_line_per_change(tmp_path, agent):
    """Each line is what `status --json` prints, and differs by more than ages from the last."""
    seen = []
    with agent("scout") as scout, piped(tmp_path, "--json") as process:
        for tokens in (0, 750, 900):
            if tokens:
                scout.update_heartbeat()
                scout.report_usage(input_tokens=tokens)
            while not seen or seen[-1]["estimatedTokens"] != tokens:
                (shown,) = json.loads(process.stdout.readline())["agents"]
                seen.append(shown)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    contents = [{k: v for k, v in one.items() if k not in AGES} for one in seen]
    assert all(one != other for one, other in pairwise(contents))
    same = json.loads(run("status", "scout", "--json", "--state-dir", tmp_path).stdout)
    assert set(same["agents"][0]) == set(seen[-1])


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_it_ends_when_nobody_reads_any_more(tmp_path, arguments):
    """It notices a closed pipe even while nothing changes."""
    store(tmp_path, "past", active=False)
    with piped(tmp_path, *arguments) as process:
        line_with(process, "agents" if arguments else "--- ")
        process.stdout.close()
        words = process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert words in ("", "1 ended, shown with --all\n")


TMUX = [
    ({}, "um 0 agents", "um 0 agents"),
    (
        {"scout-1": {"threshold_status": "critical", "usage_ratio": 0.8899}, "b": {}, "c": {}},
        "um 3 agents · scout-1 88% critical 85%+ of 200k",
        "um 3 agents · #[fg=red]scout-1 88% critical 85%+ of 200k#[default]",
    ),
    (
        {
            "warm": {"threshold_status": "warning", "usage_ratio": 0.7},
            "fuller-but-calm": {"usage_ratio": 0.8},
            "gone": {"last_heartbeat": 1e9, "started_at": 1e9, "usage_ratio": 1.0},
            "past": {"active": False, "threshold_status": "critical"},
        },
        "um 2 agents · warm 70% warning 70%+ of 200k · 1 lost",
        "um 2 agents · #[fg=yellow]warm 70% warning 70%+ of 200k#[default]"
        " · #[fg=red]1 lost#[default]",
    ),
    (
        {"vague": {"usage_ratio": None, "context_limit": None, "threshold_status": None}},
        "um 1 agent · vague unknown",
        "um 1 agent · vague unknown",
    ),
    (
        {"evil": {"threshold_status": "#(date)#[fg=red]\x1b[31m\n"}},
        r"um 1 agent · evil 10% ##(date)##[fg=red]\x1b[31m\x0a",
        r"um 1 agent · #[fg=green]evil 10% ##(date)##[fg=red]\x1b[31m\x0a#[default]",
    ),
]


@pytest.mark.parametrize(("agents", "line", "coloured"), TMUX)
def test_the_line_for_a_status_bar(tmp_path, agents, line, coloured):
    """Who lives, who is nearest to its limit, who is lost; colour codes only with --color."""
    for agent_id, values in agents.items():
        store(tmp_path, agent_id, **values)
    arguments = ("watch", "--format", "tmux", "--state-dir", tmp_path)
    assert run(*arguments).stdout == line + "\n"
    assert run(*arguments, "--color").stdout == coloured + "\n"


def test_the_line_counts_what_it_cannot_read(tmp_path):
    """Silent and unreadable agents are said to be there."""
    silent = time.time() - 60
    store(tmp_path, "quiet", last_heartbeat=silent, started_at=silent)
    store(tmp_path, "absurd", lost_after_seconds=10**400)
    store(tmp_path, "elsewhere", run="other")
    (tmp_path / "subagents" / "torn.json").write_text("{")
    shown = run("watch", "--format", "tmux", "--run", "default", "--state-dir", tmp_path).stdout
    assert shown == "um 1 agent · quiet 10% normal · 1 stale · 2 unreadable\n"


def test_the_line_names_no_agent_that_cannot_be_shown(tmp_path):
    """The heads of the states decide; the nearest one is decoded before it is named."""
    store(tmp_path, "hollow", usage_ratio=0.6, forecast={"rungs": {"warning": 7}})
    store(tmp_path, "calm")
    shown = run("watch", "--format", "tmux", "--state-dir", tmp_path).stdout
    assert shown == "um 1 agent · calm 10% normal · 1 unreadable\n"


def test_the_line_finds_the_states_where_the_others_do(tmp_path):
    """By option, by variable, by backend, else in the platform's directory."""
    places = {"option": tmp_path / "a", "variable": tmp_path / "b", "url": tmp_path / "c"}
    places["platform"] = tmp_path / "d" / "ultramon"
    for name, place in places.items():
        store(place, name)
    line = ("watch", "--format", "tmux")
    variable = {"ULTRAMON_STATE_DIR": str(places["variable"])}
    url = {"ULTRAMON_BACKEND": places["url"].as_uri()}
    for arguments, changes, found in (
        (("--state-dir", places["option"]), variable | url, "option"),
        ((), variable, "variable"),
        ((), variable | url, "url"),
        ((), {"XDG_STATE_HOME": str(tmp_path / "d")}, "platform"),
    ):
        shown = run(*line, *arguments, **changes).stdout
        assert shown == f"um 1 agent · {found} 10% normal\n"
        listed = json.loads(run("status", "--json", *arguments, **changes).stdout)["agents"]
        assert [one["agentId"] for one in listed] == [found]


def test_the_line_loads_nothing_heavy(tmp_path):
    """A status bar asks every few seconds: no pydantic, rich or sqlite3 for one line."""
    store(tmp_path, "calm")
    code = f"""
import sys
from ultramon.cli import main
try:
    main(["watch", "--format", "tmux", "--state-dir", {str(tmp_path)!r}])
except SystemExit:
    heavy = {{"pydantic", "transitions", "rich", "blinker", "sqlite3", "asyncio", "platformdirs"}}
    print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        encoding="utf-8",
        env=environment(),
        check=True,
    )
    line, heavy = done.stdout.splitlines()
    assert line == "um 1 agent · calm 10% normal"
    assert heavy == "[]"


@pytest.mark.parametrize("arguments", [["--interval", "0"], ["--notify", "smoke"]])
def test_wrong_usage_ends_with_2(tmp_path, arguments):
    """What cannot be is refused before anything is drawn."""
    done = run("watch", *arguments, "--state-dir", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")


def crossings(agent_list):
    """Who reached what since the last look."""
    return [(one.record.agent_id, rung) for one, rung in agent_list.refresh()]


def test_a_crossing_before_the_first_look_is_not_reported(make, store):
    """What happened before somebody watched is history; what comes after is news."""
    monitor = make("a", context_limit_tokens=1_000)
    monitor.report_usage(input_tokens=750)
    agent_list = AgentList(store, None, show_all=False, with_news=True)
    assert crossings(agent_list) == []
    monitor.report_usage(input_tokens=900)
    newcomer = make("b", context_limit_tokens=1_000)
    newcomer.report_usage(input_tokens=800)
    assert crossings(agent_list) == [("a", "critical"), ("b", "warning")]
    assert crossings(agent_list) == []


def test_falling_and_rising_again_is_two_crossings(make, store):
    """Each is reported, a fall alone is not; in a new epoch the rungs are new."""
    monitor = make("a", context_limit_tokens=1_000)
    agent_list = AgentList(store, None, show_all=False, with_news=True)
    agent_list.refresh()
    for tokens, news in ((750, [("a", "warning")]), (600, []), (750, [("a", "warning")])):
        monitor.report_usage(input_tokens=tokens)
        assert crossings(agent_list) == news
    monitor.record_compaction(100)
    assert crossings(agent_list) == []
    monitor.report_usage(input_tokens=750)
    assert crossings(agent_list) == [("a", "warning")]


def test_an_agent_taken_over_is_not_reported_again(make, store):
    """A new owner continues with the same epoch; its rungs were reported."""
    make("a", context_limit_tokens=1_000).report_usage(input_tokens=750)
    agent_list = AgentList(store, None, show_all=False, with_news=True)
    agent_list.refresh()
    make("a", context_limit_tokens=1_000, takeover=True).report_usage(input_tokens=760)
    assert crossings(agent_list) == []


def test_an_agent_unreadable_for_a_moment_is_not_reported_again(tmp_path, agent):
    """What was known before the state could not be read is still known."""
    with agent("a") as monitor:
        monitor.report_usage(input_tokens=750)
        backend = LocalBackend(str(tmp_path))
        agent_list = AgentList(backend, None, show_all=False, with_news=True)
        agent_list.refresh()
        file = tmp_path / "subagents" / "a.json"
        good = file.read_bytes()
        file.write_bytes(good[:100])
        assert (crossings(agent_list), len(agent_list.unreadable)) == ([], 1)
        file.write_bytes(good)
        assert (crossings(agent_list), len(agent_list.unreadable)) == ([], 0)
        monitor.report_usage(input_tokens=900)
        assert crossings(agent_list) == [("a", "critical")]
        backend.close()
