"""Whole relays with programs as agents, on real git: what is verified, kept, refused, survived."""

import os
import signal
import stat
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from helpers import IMPORT_PATH, relayed
from helpers.noted_program import NotedProgram
from helpers.program import draw
from helpers.relayed import CHECK, RelayedProject, end_contexts, finish

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.commands.relay import command
from ultramon.fleet.supervise.jobs import Job
from ultramon.relay.choices import RelayChoices
from ultramon.relay.launcher_order import Launchers
from ultramon.relay.launchers.command import CommandLauncher
from ultramon.relay.runs.briefing import Briefing
from ultramon.relay.runs.run import Run
from ultramon.relay.workspace_opening import open_workspace
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.system.processes import process_started_at


@pytest.fixture
def project(tmp_path):
    return RelayedProject(tmp_path)


def counts(result):
    return {name: count for name, count in result["work"]["counts"].items() if count}


def until(check, what):
    """Wait for a fact outside of this process."""
    deadline = time.monotonic() + 30
    while not (found := check()):
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)
    return found


def test_every_item_is_verified_across_contexts_and_kept(project):
    """Quotes and spaces are part of a name; the user's tree is as it was."""
    items = ["a b.py", 'say "x".py', "it's.py", "$(touch oops)", "--", *map(str, range(8))]
    code, result, told = finish(project.begin("obey", *project.items(*items, "a b.py", ""), *CHECK))
    assert (code, counts(result)) == (0, {"assigned": 13, "verified": 13}), told
    assert sorted(project.lines()) == sorted(items)
    assert len(result["contexts"]) > 1
    assert "1 line of the items repeated" in told
    assert project.git("status", "--porcelain") == ""
    assert project.git("rev-parse", "--abbrev-ref", "HEAD") == "main\n"
    kept = project.git("for-each-ref", "--format=%(refname)", "refs/ultramon/job/").split()
    assert len(kept) == 13
    assert result["workspace"]["branch"] == "ultramon/job"


def test_a_claim_that_a_check_refutes_is_no_success(project):
    """Done by no agent, the items are set aside after three contexts, each with its reason."""
    code, result, told = finish(project.begin("claims", *project.items("a"), *CHECK))
    assert (code, counts(result)) == (1, {"assigned": 1, "set_aside": 1})
    # One that dies before it has begun an item is charged with nothing: another one follows.
    ends = [context["reason"] for context in result["work"]["contexts"]]
    assert ends.count("completed") == 3, ends
    assert "3 contexts" in result["work"]["set_aside"]["a"]
    assert "not confirmed: a (exit code" in told


def test_what_is_put_back_is_done_by_a_later_context(project):
    """The other items do not suffer."""
    items = project.items("a", "poor b", "c")
    code, result, _ = finish(project.begin("careless", *items, *CHECK))
    assert (code, counts(result)) == (0, {"assigned": 3, "verified": 3})


def test_without_a_check_nothing_is_called_verified(project):
    """The word for it is claimed."""
    code, result, told = finish(project.begin("obey", *project.items("a", "b")))
    assert (code, counts(result)) == (0, {"assigned": 2, "claimed": 2})
    assert "claimed: b (2 of 2)" in told


def test_a_job_without_a_list_is_its_goal(project):
    """A program is given the goal as its one item."""
    code, result, _ = finish(project.begin("obey", goal="Count the stars."))
    assert (code, project.lines()) == (0, ["Count the stars."])
    assert counts(result) == {"assigned": 1, "claimed": 1}


def test_contexts_are_a_budget_of_the_run(project):
    """Reached, the run can continue with more, and says what was changed."""
    items = project.items(*map(str, range(12)))
    code, result, told = finish(project.begin("obey", *items, *CHECK, "--max-contexts", "1"))
    assert (code, result["stop"]["words"]) == (5, "the budget of 1 context is used up")
    assert 0 < counts(result)["verified"] < 12
    code, result, told = finish(project.resume())
    assert (code, len(result["contexts"])) == (5, 1)
    code, result, told = finish(project.resume("--max-contexts", "9"))
    assert (code, counts(result)) == (0, {"assigned": 12, "verified": 12})
    assert "changed: max contexts" in told
    assert project.lines() == [str(number) for number in range(12)]


def test_the_end_of_each_context_runs_a_command_of_the_user(project, tmp_path):
    """Also that of the last one, which is the end of the relay."""
    program = NotedProgram(tmp_path)
    config = tmp_path / "own.toml"
    config.write_text(
        f'[on.ended]\nrun = ["{program.path}", "{{agent}}"]\nper_minute = 60\nchildren = true\n'
    )
    items = project.items(*map(str, range(4)))
    begun = project.begin("obey", *items, *CHECK, ULTRAMON_CONFIG=str(config))
    code, result, told = finish(begun)
    assert code == 0, told
    ended = sorted(agent for (agent,) in program.calls)
    assert ended == sorted({*ended})
    assert len(ended) == len(result["contexts"])


def test_the_choices_of_a_run_are_private(project):
    """They hold the goal, and whatever arguments the agent got."""
    finish(project.begin("obey", *project.items("a")))
    folder = project.state / "relay" / "job"
    found = [path for path in folder.rglob("*") if "worktree" not in path.parts and path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in found} == {0o600}
    assert len(found) >= 5


GIVEN = {
    "goal": ("Port it.",),
    "agent": ("--agent", "qwen"),
    "may_pay": ("--may-pay", "qwen"),
    "items": ("--items", "{items}"),
    "rules": ("--rule", "Be brief.", "--rule", "Ask nobody."),
    "verify": ("--verify", "grep -q {{item}} done"),
    "verify_seconds": ("--verify-timeout", "1m"),
    "check_at_end": ("--no-check-at-end",),
    "hand_over_at": ("--hand-over-at", "critical"),
    "max_contexts": ("--max-contexts", "3"),
    "leave_plan": ("--leave-plan", "20%"),
    "wait_at_most_seconds": ("--wait-at-most", "6h"),
    "max_usd": ("--max-usd", "2.5"),
    "max_tokens": ("--max-tokens", "1.5M"),
    "prices": ("--prices", "{prices}"),
    "deadline_seconds": ("--deadline", "4h"),
    "grace_seconds": ("--grace", "9s"),
    "idle_requests": ("--idle-requests", "40"),
    "in_place": ("--in-place",),
    "compare": ("--compare",),
    "program": ("--program", "{program}"),
    "setup": ("--setup", "echo ready > .ready"),
    "setup_seconds": ("--setup-timeout", "1m"),
    "verify_all": ("--verify-all", "true"),
    "workers": ("--workers", "2"),
    "protect": ("--protect", "tests/", "--protect", "*.cfg"),
}
"""Every option that chooses something of the run, with a value that is not its default."""
OF_A_CALL = {"run", "resume", "rewind", "clean", "recheck", "yes", "state_dir", "json"}
"""Options that name the run, or say how this call prints."""


def differences(one, other):
    """The names of the choices in which two runs differ."""
    others = asdict(other)
    return [name for name, value in asdict(one).items() if value != others[name]]


@pytest.mark.parametrize(
    "left_out",
    [{"in_place"}, {"compare", "setup", "verify_all", "workers", "protect"}],
)
def test_a_run_goes_on_with_all_that_it_was_begun_with(project, left_out):
    """Whatever option there is, from another directory too; --in-place excludes some of them."""
    assert {one.name for one in command.params} == set(GIVEN) | OF_A_CALL
    client = project.path.parent / "client"
    failing = f"echo >> {client}.started; exit 3"
    client.write_text(f"#!/bin/sh\n[ $1 = --version ] && echo 0.24.4 && exit\n{failing}\n")
    client.chmod(0o755)
    _, items = project.items("a", "b")
    (project.path.parent / "prices.toml").write_text("list_price_factor = 0.5\n")
    values = {
        "items": items,
        "program": os.path.relpath(client, project.path),
        "prices": os.path.relpath(project.path.parent / "prices.toml", project.path),
    }
    words = [word for name in GIVEN if name not in left_out for word in GIVEN[name]]
    given = [word.format(**values) for word in words]

    def stored():
        return RelayChoices.load(str(project.state), "job")

    def started():
        return Path(f"{client}.started").read_text().count("\n")

    code, _, told = finish(project.start(None, *given, "--run", "job"))
    assert code == 1, told
    begun, count = stored(), started()
    assert len(differences(begun, RelayChoices("", begun.cwd))) == len(GIVEN) - len(left_out)
    project.path = project.directory
    code, _, told = finish(project.resume())
    assert (code, stored()) == (1, begun), told
    assert started() > count
    code, _, told = finish(project.resume("--max-usd", "3", "--rule", "Be quick."))
    assert differences(stored(), begun) == ["rules", "max_usd"]
    assert "changed: max usd, rules" in told


def test_a_prompt_says_which_checks_failed_in_an_earlier_call(project):
    """As the journal has it: the process that ran them is gone."""
    items = project.items("a", "b")
    code, _, told = finish(project.begin("claims", *items, *CHECK, "--max-contexts", "1"))
    assert (code, "not confirmed: a (exit code" in told) == (5, True), told
    backend = LocalBackend(str(project.state))
    workspace = open_workspace("job", cwd=str(project.path), state_directory=str(project.state))
    choices = RelayChoices("Do it all.", str(project.path), items=("a", "b"), agent="command")
    clients = Launchers({"command": CommandLauncher("job", ("true",))}, SYSTEM_CLOCK)
    run = Run("job", choices, clients, (workspace,), None, backend, print)
    prompt = Briefing(run).write(Job("job.2", ("a", "b"), None, {}), 2, workspace, None)
    backend.close()
    assert "the check of 'a' failed: exit code" in prompt
    assert "the check of 'b' failed: exit code" in prompt


def test_an_interrupt_asks_for_a_hand_over(project):
    """The context leaves what it has; the run continues later and repeats nothing."""
    relay = project.begin("waits", *project.items("a", "b", "c"), *CHECK)
    until(lambda: project.lines("begun") == ["a", "b"], "two items begun")
    relay.send_signal(signal.SIGINT)
    code, result, told = finish(relay)
    assert (code, result["stop"]["kind"]) == (130, "interrupted"), told
    assert counts(result) == {"assigned": 3, "verified": 1, "left": 2}
    assert "next: ultramon relay --resume job · ultramon relay --clean job" in told
    code, result, _ = finish(project.resume(mode="obey"))
    assert (code, counts(result)) == (0, {"assigned": 3, "verified": 3})
    assert project.lines() == ["a", "b", "c"]


def test_a_context_that_does_not_hand_over_is_ended(project):
    """It had its time; the next one continues."""
    relay = project.begin("deaf", *project.items("a", "b"), *CHECK, "--grace", "1s")
    code, result, _ = finish(relay)
    assert (code, counts(result)) == (0, {"assigned": 2, "verified": 2})
    assert [one["is_killed"] for one in result["work"]["contexts"]] == [True, False]


def test_a_finished_run_can_be_checked_again(project):
    """What fails now is done again; without being asked, a relay says that it did not look."""
    finish(project.begin("obey", *project.items("a", "b"), *CHECK))
    (project.tree() / "done").write_text("a\n")
    code, result, _ = finish(project.resume())
    assert (code, result["work"]["done_earlier"], project.lines()) == (0, 2, ["a"])
    code, result, told = finish(project.resume("--recheck"))
    assert (code, counts(result)) == (0, {"assigned": 2, "verified": 2}), told
    assert "not confirmed any more: b" in told
    assert project.lines() == ["a", "b"]
    finish(other := project.begin("obey", *project.items("a"), "--recheck", run="other"))
    assert other.returncode == 2


def test_the_deadline_ends_a_run_that_goes_on_later(project):
    """It is a budget too."""
    relay = project.begin("waits", *project.items("a", "b"), *CHECK, "--deadline", "1s")
    code, result, told = finish(relay)
    assert result is not None, (code, told)
    assert (code, result["stop"]["words"]) == (5, "the time is up")


def test_a_program_that_always_fails_is_given_up(project):
    """After a few restarts, with pauses."""
    code, result, told = finish(project.begin("fails", *project.items("a")))
    assert (code, result["stop"]["kind"]) == (1, "gave_up")
    assert "context 1 ended: lost (exit code 3): no such model" in told
    assert counts(result) == {"assigned": 1, "left": 1}


def test_what_a_context_leaves_running_is_ended(project):
    """The next context has the worktree for itself."""
    code, _, _ = finish(project.begin("forgetful", *project.items("a"), *CHECK))
    assert code == 0
    assert [process_started_at(int(pid)) for pid in project.lines("left")] == [None]


def test_a_check_that_hangs_has_failed(project):
    """It is ended with what it started."""
    check = ("--verify", "sh -c 'echo $$ > pid; cat /dev/zero | cat > /dev/null'")
    code, result, told = finish(
        project.begin("obey", *project.items("a"), *check, "--verify-timeout", "1s")
    )
    assert (code, counts(result)) == (1, {"assigned": 1, "set_aside": 1})
    assert "not confirmed: a (took more than 1 s)" in told
    assert process_started_at(int(project.lines("pid")[0])) is None


# --- kills


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate"
    os.mkfifo(path)
    return path


def test_a_relay_that_is_killed_finds_its_context_again(project, gate):
    """It runs on alone, and the next relay continues with it: nothing is done twice."""
    relay = project.begin("gated", *project.items("a", "b"), *CHECK, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], "the first item")
    relay.kill()
    relay.communicate()
    again = project.resume(GATE=str(gate))
    until(lambda: "still runs" in again.stderr.readline(), "the context is found")
    gate.write_text("")
    until(lambda: project.lines("begun") == ["a", "b"], "the second item")
    gate.write_text("")
    code, result, _ = finish(again)
    assert (code, counts(result), len(result["contexts"])) == (0, {"assigned": 2, "verified": 2}, 1)
    assert project.lines("begun") == project.lines() == ["a", "b"]


def test_a_relay_and_its_context_that_are_killed_repeat_one_item(project, gate):
    """What was in work is begun again, and counted."""
    relay = project.begin("gated", *project.items("a", "b"), *CHECK, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], "the first item")
    gate.write_text("")
    until(lambda: project.lines("begun") == ["a", "b"], "the second item")
    relay.kill()
    relay.communicate()
    assert end_contexts(project.state) >= 1
    code, result, _ = finish(project.resume(mode="obey"))
    assert (code, counts(result)) == (0, {"assigned": 2, "verified": 2})
    assert result["work"]["repeated"] == ["b"]
    assert project.lines("begun") == ["a", "b", "b"]


def test_what_a_killed_context_left_running_is_no_context(project, gate):
    """A process of its own session, with the environment of the context, is ended."""
    relay = project.begin("forgetful", *project.items("a"), *CHECK, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], "the first item")
    relay.kill()
    relay.communicate()
    (left,) = map(int, project.lines("left"))
    os.killpg(LocalBackend(str(project.state)).load("job.1").record.pid, signal.SIGKILL)
    code, result, told = finish(project.resume(mode="obey"))
    assert (code, counts(result)) == (0, {"assigned": 1, "verified": 1})
    assert "still runs" not in told
    assert process_started_at(left) is None


def test_one_relay_at_a_time_works_on_a_run(project, gate):
    """The second gets an error that names the holder; the first does not notice."""
    relay = project.begin("gated", *project.items("a"), *CHECK, GATE=str(gate))
    until(lambda: project.lines("begun") == ["a"], "the first item")
    code, result, told = finish(project.resume())
    assert (code, result) == (1, None)
    assert f"is held by process {relay.pid}, since " in told
    gate.write_text("")
    assert finish(relay)[0] == 0


# --- usage


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name a GOAL"),
        (("--resume", "none"), "a relay that was begun"),
        (("Do it.", "--agent", "command"), "a program and its arguments"),
        (("Do it.", "--agent", "command", "--deadline", "4x"), "no time span"),
        (("Do it.", "--items", os.devnull), "at least one line"),
        ((" ", "--agent", "command"), "not empty"),
    ],
)
def test_wrong_usage_makes_nothing(project, arguments, said):
    """Neither a worktree nor a branch."""
    code, result, told = finish(project.start(None, *arguments))
    assert code in (1, 2)
    assert (result, said in told) == (None, True), told
    assert project.git("branch", "--list") == "* main\n"


def test_outside_of_git_a_relay_works_in_place_only_by_choice(project, tmp_path):
    """There it says that nothing is checkpointed."""
    project.path = tmp_path / "plain"
    project.path.mkdir()
    code, _, told = finish(project.begin("obey", *project.items("a")))
    assert (code, "is in no git repository" in told) == (1, True)
    code, _, told = finish(project.begin("obey", *project.items("a"), "--in-place"))
    assert (code, "nothing is checkpointed" in told) == (0, True)
    assert (project.path / "done").read_text() == "a\n"


def test_on_a_terminal_one_line_is_redrawn_below_the_steps(project, monkeypatch):
    """It is gone at the end, when the result is printed."""
    monkeypatch.chdir(project.path)
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH)
    program = (sys.executable, "-B", relayed.__file__, "obey")
    raw, screen, code = draw(
        "relay", "Do it.", "--agent", "command", *project.items(*"abcdefgh"), *CHECK,
        "--run", "job", "--yes", "--state-dir", project.state, "--", *program,
    )  # fmt: skip
    assert code == 0, screen
    shown = [line for line in screen if line]
    assert "verified: a (1 of 8)" in shown
    assert shown[-4] == "8 assigned = 8 verified"
    assert shown[-1] == "next: ultramon relay --clean job"
    assert b"\r\x1b[2K" in raw
    assert not [line for line in shown if "8 of 8 done" in line]


def test_items_may_come_from_a_pipe(project):
    """The list is kept with the run, which continues without the pipe; more items may follow."""
    with open(project.items("a", "b")[1]) as lines:
        code, result, told = finish(project.begin("obey", "--items", "-", *CHECK, stdin=lines))
    assert (code, counts(result)) == (0, {"assigned": 2, "verified": 2}), told
    code, result, told = finish(project.resume(*project.items("b", "c")))
    assert (code, counts(result)) == (0, {"assigned": 3, "verified": 3})
    assert "changed: items" in told
    assert project.lines() == ["a", "b", "c"]


def test_a_relay_that_is_disabled_says_so(project):
    """Its hooks would see nothing."""
    code, result, told = finish(project.begin("obey", ULTRAMON_DISABLED="1"))
    assert (code, result, "ULTRAMON_DISABLED is set" in told) == (1, None, True)
