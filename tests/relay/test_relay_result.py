"""What a relay says first and last: the page shows these very lines."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import DATA, ROOT
from helpers.program import PROGRAM, environment
from helpers.relayed import RelayedProject

from ultramon.errors import ConfigurationError, StateCorruptError, StateError
from ultramon.fleet.supervise.result import ContextResult, ItemCounts, SupervisorResult
from ultramon.relay.choices import RelayChoices, read_items
from ultramon.relay.disk_space import DiskNeed
from ultramon.relay.launchers.outcome import SpentTokens
from ultramon.relay.opening import free_name, open_relay
from ultramon.relay.run_folder import run_lock
from ultramon.relay.runs.context_record import ContextRecord
from ultramon.relay.runs.result import RelayResult, Stop, duration, millions
from ultramon.relay.workspace import WorkspaceSummary
from ultramon.relay.workspace_record import WorkspaceRecord
from ultramon.state.plan_limits import FIVE_HOURS, PlanLimits, plan_limit
from ultramon.system.clock import SYSTEM_CLOCK

PAGE = (ROOT / "docs" / "relay.md").read_text(encoding="utf-8")
REASON = "3 contexts without progress on it; exit code 1"


def result(**changes):
    """A run of 40 items with an end of every kind."""
    contexts = [
        ContextResult(f"port-1.{number}", 40, 5, "completed", number == 3) for number in range(1, 8)
    ]
    work = SupervisorResult(
        run="port-1",
        counts=ItemCounts(40, 38, 1, 1, 0),
        contexts=tuple(contexts),
        repeated=("tests/test_io.py",),
        set_aside={"tests/test_tz.py": REASON},
        left=(),
        lost=(),
        verify_errors={},
        stopped=None,
        begun_again=("tests/test_io.py",),
    )
    spent = SpentTokens(40_000, 288_000, 3_772_000, 61_000)
    record = ContextRecord(1, "s", 0.0, ended_at=3_120.0, spent=spent, cost_usd=3.1)
    tree = WorkspaceSummary("ultramon/port-1", "3f2c1ab", "77aa", (), 38, ("a", "b"), 2)
    made = RelayResult("port-1", work, True, True, None, (record,), 0, None, tree)
    return replace(made, **changes)


def test_the_last_lines_are_those_of_the_page():
    """Every number is one of the result's own."""
    assert "\n".join(result().lines(1)) in PAGE
    assert not result().ok


@pytest.mark.parametrize(
    ("counts", "tasks", "line"),
    [
        (ItemCounts(1, 1, 0, 0, 0), {"a": "done", "b": "open"}, "goal: verified · 2 tasks, 1 done"),
        (ItemCounts(1, 0, 1, 0, 0), {}, "goal: only claimed · no plan recorded"),
        (ItemCounts(1, 0, 0, 1, 0), {}, f"goal: not reached ({REASON}) · no plan recorded"),
    ],
)  # fmt: skip
def test_a_job_without_a_list_has_a_goal(counts, tasks, line):
    """Its tasks are the agent's own."""
    work = replace(result().work, counts=counts)
    assert next(result(work=work, has_items=False, tasks=tasks).lines(0)) == line


def test_why_a_run_stopped_comes_last():
    """With what would get it further."""
    stop = Stop.refused(2, ["--allowedTools Edit"])
    assert list(result(stop=stop).lines(6))[-2:] == [
        "stopped: no progress, and 2 calls denied in the last context",
        "this would allow it: -- --allowedTools Edit",
    ]


def test_lost_items_are_never_silent():
    """They would be a bug."""
    work = replace(result().work, lost=("a",))
    assert next(result(work=work).lines(1)).endswith("; 1 lost: please report this")


def test_facts_of_a_comparison_have_one_name_each():
    """What the client did not say is no number."""
    bare = result(contexts=(ContextRecord(1, "s", 0.0),))
    assert (bare.facts()["input tokens"], bare.facts()["list price"]) == ("?", "?")
    assert result().facts()["of them not cached"] == "328k"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (5_400, "1 h 30 min"), (14_400, "4 h")],
)
def test_time_spans_are_read_by_people(seconds, text):
    """No unit that is zero."""
    assert duration(seconds) == text


def test_tokens_are_short():
    """Two digits that matter."""
    assert [millions(n) for n in (950, 41_200, 949_999, 4_100_000)] == [
        "950", "41k", "950k", "4.1 M",
    ]  # fmt: skip


# --- what is said first


@pytest.fixture
def client(tmp_path):
    """A program that calls itself a client."""
    path = tmp_path / "claude"
    path.write_text("#!/bin/sh\necho '2.1.330 (Claude Code)'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def opened(tmp_path, client, monkeypatch):
    """Open a new run for Claude Code."""
    project = RelayedProject(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "none"))
    monkeypatch.delenv("ANTHROPIC_MODEL", raising=False)

    def opened(*arguments, **choices):
        choices = {"program": client, "arguments": arguments, **choices}
        given = RelayChoices("Port.", str(project.path), **choices)
        return open_relay("port-1", given, state_directory=str(project.state))

    return opened


def test_the_first_lines_are_those_of_the_page(opened, monkeypatch, tmp_path):
    """But for the commit, and for the size of the repository."""
    monkeypatch.setenv("CLAUDE_CODE_AUTO_COMPACT_WINDOW", "200000")
    account, now = tmp_path / "none", SYSTEM_CLOCK.now()
    account.mkdir()
    (account / ".credentials.json").write_text('{"claudeAiOauth": {"subscriptionType": "max"}}')
    used = plan_limit(FIVE_HOURS, 38, now + 3_600, now)
    PlanLimits(str(tmp_path / "state")).record("claude-code", str(account), [used], now)
    relay = opened("--allowedTools", "Edit")
    assert relay.workspace.disk.tree_bytes == 4_096
    relay.workspace.disk = DiskNeed(1_214_000_000, None, 88_402_000_000)
    base = relay.workspace.base[:7]
    assert "\n".join(relay.head()).replace(base, "3f2c1ab") in PAGE


@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((), "hands over at 65% of the window, known from the first reply on"),
        (("--model", "opus"), "hands over at 65% of the window, known from the first reply on"),
        (("--model", "claude-haiku-4-5"), "hands over at 130k of 200k tokens"),
        (("--model=claude-haiku-4-5",), "hands over at 130k of 200k tokens"),
    ],
)
def test_a_window_that_is_not_known_is_not_invented(opened, arguments, level):
    """A short name may mean another model tomorrow."""
    assert f"{level} · stops at" in "\n".join(opened(*arguments).head())


def test_the_critical_rung_may_be_chosen(opened):
    """Then the first line says so."""
    relay = opened("--model", "claude-haiku-4-5", hand_over_at="critical", max_usd=2.5,
                   deadline_seconds=5400.0, max_contexts=1)  # fmt: skip
    level, budget = list(relay.head())[4].split(" · ")
    assert level == "hands over at 150k of 200k tokens"
    assert budget == "stops at 1 context, $2.50 at list price, 1 h 30 min"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "permissions: your settings; what would prompt is denied"),
        (("--permission-mode", "acceptEdits"), "permissions: your settings and arguments; "),
        (("--dangerously-skip-permissions",), "permissions: nothing is asked, by your argument "),
        (("--permission-mode", "bypassPermissions"), "permissions: nothing is asked, by your "),
    ],
)
def test_whose_permissions_hold_is_said(opened, arguments, words):
    """Also where the user has switched them off."""
    assert words in next(opened(*arguments).head())


# --- choices, names, the lock


def test_choices_come_back_as_they_were(tmp_path):
    """Every field, names that are no text included."""
    choices = RelayChoices(
        "Port.", "/srv", ("a",), ("x", "\udcff"), "check {item}", 1.5, "command", ("-x",),
        "critical", True, 3, 2.5, 60.0, 5.0,
    )  # fmt: skip
    folder = tmp_path / "relay" / "port-1"
    folder.mkdir(parents=True)
    choices.save(str(folder))
    assert RelayChoices.load(str(tmp_path), "port-1") == choices
    assert free_name(str(tmp_path), "Port it!") == "port-2"
    assert free_name(str(tmp_path), "…") == "relay-1"
    (folder / "relay.json").write_text("{}")
    with pytest.raises(StateCorruptError, match="start another run"):
        RelayChoices.load(str(tmp_path), "port-1")
    with pytest.raises(ConfigurationError, match="a relay that was begun"):
        RelayChoices.load(str(tmp_path), "port-9")


def test_the_choices_of_an_earlier_version_are_read(tmp_path):
    """From before there was a setup: a run of it has none, and the usual time for one."""
    folder = tmp_path / "relay" / "port-1"
    folder.mkdir(parents=True)
    (folder / "relay.json").write_bytes((DATA / "relay" / "earlier-relay.json").read_bytes())
    choices = RelayChoices.load(str(tmp_path), "port-1")
    assert (choices.goal, choices.setup, choices.setup_seconds) == ("Do it all.", None, 1_800.0)
    (folder / "workspace.json").write_bytes(
        (DATA / "relay" / "earlier-workspace.json").read_bytes()
    )
    record = WorkspaceRecord.load(str(folder))
    assert (record.branch, record.origin, record.setup) == ("ultramon/job", None, None)
    assert not record.is_cleaned


def test_items_are_lines_each_once():
    """What a task list could not tell apart is one item."""
    assert read_items(["a\n", "\n", "  b  c \n", "a", "b c"]) == (("a", "b  c"), 2)
    with pytest.raises(ConfigurationError, match="at most 200"):
        read_items(["x" * 201])


def test_a_run_is_held_by_one(tmp_path):
    """And free again afterwards."""
    for _ in range(2):
        held = run_lock(str(tmp_path))
        with held, pytest.raises(StateError, match="held by process"):
            run_lock(str(tmp_path)).__enter__()


def test_the_program_of_the_page_works(tmp_path):
    """As a worker of the relay whose command line follows it."""
    project = RelayedProject(tmp_path)
    _, _, rest = PAGE.partition("```python\n# reviewer.py\n")
    program, _, rest = rest.partition("```\n")
    command = next(line for line in rest.splitlines() if line.startswith("ultramon relay"))
    (project.path / "reviewer.py").write_text(program)
    (project.path / "files.txt").write_text("a.txt\nb.txt\n")
    project.git("add", ".")
    project.git("commit", "-q", "-m", "A reviewer")
    path = f"{Path(PROGRAM).parent}:/usr/bin:/bin"
    done = subprocess.run(
        command,
        shell=True,
        cwd=project.path,
        env=environment(PATH=path, ULTRAMON_STATE_DIR=str(project.state)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 assigned = 2 claimed, not checked\n")
    (output,) = (project.state / "relay").glob("*/contexts/1.1.out")
    assert output.read_text() == "reviewed a.txt\nreviewed b.txt\n"
