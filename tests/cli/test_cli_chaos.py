import json
import os
import re
import signal
import subprocess
import sys

import pexpect
import pytest
from helpers import ROOT
from helpers.program import PROGRAM, environment
from helpers.program import run_process as run

from ultramon import create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.exit_codes import ExitCode
from ultramon.fleet.supervise.ledger import Ledger
from ultramon.state.record import StateRecord
from ultramon.state.stored_handoff import make_handoff
from ultramon.testing.clock import START

ORCHESTRATOR = ROOT / "tests" / "helpers" / "chaos_orchestrator.py"
FAST = ("--every", "0.05", "--timeout", "40")


def chaos(tmp_path, *arguments, **changes):
    """Run chaos on the states in a directory of its own."""
    return run("chaos", "--state-dir", tmp_path, *arguments, **changes)


def orchestrator(kind):
    """The command line of the test's orchestrator."""
    return "--", sys.executable, ORCHESTRATOR, kind


def test_an_orchestrator_that_hands_over_loses_nothing(tmp_path):
    """Its three workers are killed, and three successors do what they left.

    Its output appears on stderr, with control characters made visible.
    """
    done = chaos(tmp_path, "--json", *FAST, *orchestrator("careful"))
    assert "\\x1b[31mworker-0 is lost\n" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "is lost" not in done.stdout
    report = json.loads(done.stdout)
    assert (done.returncode, report["problems"]) == (0, []), done.stderr
    assert (report["agents"], report["kills"], report["stillRunning"]) == (6, 3, 0)
    assert (report["planned"], report["completed"], report["lost"]) == (12, 12, 0)
    assert report["repeated"] == len(report["repeatedItems"]) <= 3
    assert (report["returncode"], report["timedOut"]) == (0, False)
    victims = re.findall(r"^killed (worker-\d) \(process \d+\)$", done.stderr, re.MULTILINE)
    assert sorted(victims) == ["worker-0", "worker-1", "worker-2"]
    events = LocalBackend(str(tmp_path)).events(limit=1000).events
    assert {event["run"] for event in events} == {report["run"]}
    assert re.fullmatch(r"chaos-[0-9a-f]{8}", report["run"])


def test_an_orchestrator_that_forgets_loses_work(tmp_path):
    """Items that no agent completed are counted and named, and the exit code is 1."""
    done = chaos(tmp_path, *FAST, *orchestrator("forgetful"))
    assert done.returncode == ExitCode.FAILURE
    found = re.search(r"items planned: 12; completed: (\d); repeated: 0; lost: (\d+)", done.stdout)
    assert int(found[1]) + int(found[2]) == 12
    assert int(found[2]) >= 6
    assert re.search(r"^Error: lost: .*part-0/3", done.stderr, re.MULTILINE)


def test_agents_that_died_without_a_plan_are_named(tmp_path):
    """Nobody knows what they had to do, unless it was assigned: then its items are lost by name."""
    done = chaos(tmp_path, "--json", "--kills", "0", *orchestrator("early"))
    report = json.loads(done.stdout)
    assert done.returncode == ExitCode.FAILURE
    assert (report["planned"], report["lostItems"]) == (1, ["given"])
    assert report["diedWithoutPlan"] == ["unknown", "unstarted"]
    assert report["problems"] == [
        "died without a plan: unknown, unstarted: their work is not known; "
        "Fleet.assign() it before the start",
        "lost: given",
    ]


def test_an_item_that_was_given_up_is_no_success(tmp_path):
    """It is set aside and not lost, the orchestrator ends with 0, and chaos does not."""
    done = chaos(tmp_path, "--kills", "0", *orchestrator("gives_up"))
    assert done.returncode == ExitCode.FAILURE
    assert "planned: 2; completed: 1; repeated: 1; set aside: 1; lost: 0\n" in done.stdout
    reason = "3 contexts without progress on it; the last one: failed (ZeroDivisionError)"
    assert done.stderr.endswith(f"Error: set aside: poison ({reason})\n")


def test_an_item_that_a_check_denies_is_no_success(tmp_path):
    """Its agent says that it is done, and the command ends with 0."""
    done = chaos(tmp_path, "--json", "--kills", "0", *orchestrator("unverified"))
    report = json.loads(done.stdout)
    assert (done.returncode, report["completed"], report["lost"]) == (ExitCode.FAILURE, 2, 0)
    assert report["problems"] == ["claimed and not verified: wrong"]


def test_the_orchestrators_own_process_is_spared(tmp_path):
    """An agent in it cannot be killed without killing the one that should carry on."""
    done = chaos(tmp_path, "--every", "0.01", "--run", "mine", *orchestrator("alone"))
    assert done.returncode == 0
    assert "run mine: agents: 1; workers killed: 0\n" in done.stdout
    assert "items planned: 1; completed: 1; repeated: 0; lost: 0\n" in done.stdout
    assert (
        "Warning: 0 of 3 kills, then the command ended: all agents were in its own process\n"
        in done.stderr
    )


def test_agents_that_were_there_before_are_left_alone(tmp_path):
    """Even in the same run: the living are neither killed nor counted, nobody names the dead."""
    chaos(tmp_path, "--run", "mine", "--kills", "0", *orchestrator("early"))
    backend = LocalBackend(str(tmp_path))
    with create_context_monitor("bystander", run="mine", backend=backend) as bystander:
        bystander.plan(["something else"])
        done = chaos(tmp_path, "--json", "--run", "mine", *FAST, *orchestrator("careful"))
        report = json.loads(done.stdout)
    assert (report["agents"], report["planned"], report["kills"]) == (6, 12, 3)
    assert (done.returncode, report["diedWithoutPlan"]) == (0, [])
    assert backend.load("bystander").record.outcome == "completed"


def test_a_command_without_agents_proves_nothing(tmp_path):
    """No agent in the run, or none with a plan: that is no success."""
    done = chaos(tmp_path, "true")
    assert done.returncode == ExitCode.FAILURE
    assert "Error: no agent started in run chaos-" in done.stderr
    idle = "import ultramon\nwith ultramon.create_context_monitor(): pass"
    done = chaos(tmp_path, "--", sys.executable, "-c", idle)
    assert done.returncode == ExitCode.FAILURE
    assert "Error: no agent planned anything" in done.stderr


def test_a_command_that_fails_is_told(tmp_path):
    """How it ended is in the report, whatever became of the items."""
    done = chaos(tmp_path, "--kills", "0", "sh", "-c", "exit 7")
    assert done.returncode == ExitCode.FAILURE
    assert done.stdout.startswith("sh -c 'exit 7' ended with 7 after ")
    assert "Error: the command ended with 7\n" in done.stderr
    done = chaos(tmp_path, "--kills", "0", "sh", "-c", "kill -SEGV $$")
    assert "Error: the command was ended by SIGSEGV\n" in done.stderr


def test_a_command_that_takes_too_long_is_ended(tmp_path):
    """First asked, then killed, and what is known by then is reported."""
    # Deaf before it has loaded anything, however long that takes.
    deaf = ("sh", "-c", "trap '' TERM; exec \"$@\"", "sh", *orchestrator("deaf")[1:])
    done = chaos(tmp_path, "--json", "--timeout", "1", "--", *deaf)
    report = json.loads(done.stdout)
    assert (done.returncode, report["timedOut"], report["returncode"]) == (1, True, -9)
    assert report["problems"][0] == "the command took too long and was ended"


def test_the_output_of_a_command_is_passed_on_whole(tmp_path):
    """Without a last line end, after it closed its stdout, and when nothing reads it for long."""
    done = chaos(tmp_path, "--", "sh", "-c", "seq 30000; printf 'no line end'")
    assert done.stderr.startswith("1\n2\n3\n")
    assert "\n30000\nno line end\n" in done.stderr
    done = chaos(tmp_path, "--", "sh", "-c", "echo closing; exec >&- 2>&-; exit 3")
    assert done.stdout.startswith("sh -c 'echo closing; exec >&- 2>&-; exit 3' ended with 3")


def test_a_worker_that_prints_on_does_not_hold_the_report_up(tmp_path):
    """The command has ended; what its orphan says later is nobody's business."""
    noise = "echo $$ >&2; exec yes"
    done = chaos(tmp_path, "--", "sh", "-c", f"sh -c '{noise}' & exit 0")
    assert "ended with 0 after" in done.stdout


def test_ctrl_c_ends_the_command_too():
    """Chaos ends with 130 and leaves no process behind."""
    child = pexpect.spawn(
        PROGRAM,
        ["chaos", "--", "sh", "-c", "echo I am $$; exec tail -f /dev/null"],
        env=environment(),
        timeout=60,
        encoding="utf-8",
    )
    child.expect(r"I am (\d+)")
    command = int(child.match[1])
    child.kill(signal.SIGINT)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == ExitCode.INTERRUPTED
    assert "Traceback" not in child.before
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)


def test_a_command_that_is_not_there_is_one_line(tmp_path):
    """Like every other error."""
    done = chaos(tmp_path, "no-such-program")
    assert (done.returncode, done.stdout) == (ExitCode.FAILURE, "")
    assert done.stderr == "Error: no-such-program: No such file or directory\n"


def test_chaos_needs_records_that_processes_share(tmp_path):
    """Disabled or in memory there is nothing to judge by; a wrong run is refused."""
    done = chaos(tmp_path, "true", ULTRAMON_DISABLED="1")
    assert (done.returncode, done.stderr[:30]) == (1, "Error: ULTRAMON_DISABLED is se")
    done = run("chaos", "true", ULTRAMON_BACKEND="memory:")
    assert done.stderr == "Error: ULTRAMON_BACKEND is memory:, which processes cannot share\n"
    done = chaos(tmp_path, "--run", "../x", "true")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


def test_options_behind_the_command_are_the_commands(tmp_path):
    """`--` may be left out."""
    done = chaos(tmp_path, "--kills", "0", "echo", "--kills", "7", "--json")
    assert "--kills 7 --json\n" in done.stderr
    assert done.stdout.startswith("echo --kills 7 --json ended with 0")


@pytest.mark.parametrize(
    ("name", "items", "returncode"),
    [
        ("subprocess_orchestrator.py", 24, ExitCode.OK),
        ("asyncio_orchestrator.py", 200, ExitCode.OK),
        ("escalation.py", 1000, ExitCode.FAILURE),  # nobody carries on there
    ],
)
def test_the_examples_take_part_in_the_run_of_chaos(tmp_path, name, items, returncode):
    """What the examples show holds when somebody pulls the plug."""
    path = ROOT / "examples" / name
    done = chaos(tmp_path, "--json", "--every", "0.3", "--", sys.executable, path)
    report = json.loads(done.stdout)
    assert (report["returncode"], report["planned"]) == (0, items), done.stderr
    assert report["diedWithoutPlan"] == []
    assert done.returncode == returncode


def life(*tasks, agent_id="a", generation=1, active=True):
    """The state of an agent with these (item, status) pairs."""
    return StateRecord(
        agent_id,
        generation=generation,
        active=active,
        tasks=[{"name": name, "status": status, "result": None} for name, status in tasks],
    )


def seen(*records, handoffs=()):
    """What a ledger says after these states and handoffs: planned, completed, repeated, lost."""
    ledger = Ledger()
    for record in records:
        ledger.enter_state(record)
    for event in handoffs:
        ledger.enter_event(event)
    return ledger.planned, ledger.completed, ledger.repeated, ledger.lost


def test_an_item_done_by_one_agent_is_done_once():
    """However often its state is seen on the way."""
    on_the_way = [life(("1", status)) for status in ("pending", "in_progress", "done", "done")]
    assert seen(*on_the_way) == (["1"], ["1"], [], [])


def test_an_item_begun_by_two_agents_is_repeated():
    """Also when only the second one completed it."""
    states = [life(("1", "in_progress")), life(("1", "done"), agent_id="b")]
    assert seen(*states) == (["1"], ["1"], ["1"], [])


def test_an_item_planned_by_two_agents_is_not_repeated():
    """A plan is handed on; that is not yet work."""
    states = [life(("1", "pending")), life(("1", "done"), agent_id="b")]
    assert seen(*states) == (["1"], ["1"], [], [])


def test_a_plan_that_a_new_owner_continues_is_one_plan():
    """What was done before the takeover stays done once; what was begun is begun again."""
    states = [
        life(("1", "done"), ("2", "in_progress")),
        life(("1", "done"), ("2", "interrupted"), generation=2),
        life(("1", "done"), ("2", "done"), generation=2),
    ]
    assert seen(*states) == (["1", "2"], ["1", "2"], ["2"], [])
    assert seen(*states[1:]) == (["1", "2"], ["1", "2"], ["2"], [])


def test_an_agent_that_ended_and_began_anew_repeats_its_work():
    """Under one id it has two lives, and both completed the item."""
    states = [life(("1", "done"), active=False), life(("1", "done"), generation=2)]
    assert seen(*states) == (["1"], ["1"], ["1"], [])


def test_what_only_a_handoff_tells_counts():
    """A state may be older than the handoff that its agent left just before it was killed."""
    last = life(("1", "done"), ("2", "interrupted"), ("3", "pending"))
    last.epoch = 1
    handoff = make_handoff(last, last.tasks, now=START)
    left = last.event("handoff_ready", at=START, n=0, handoff=handoff)
    assert seen(handoffs=[left]) == (["1", "2", "3"], ["1"], [], ["2", "3"])
    state = life(("1", "in_progress"), ("2", "pending"), ("3", "pending"))
    assert seen(state, handoffs=[left]) == (["1", "2", "3"], ["1"], [], ["2", "3"])
    again = life(("2", "done"), agent_id="b")
    assert seen(state, again, handoffs=[left]) == (["1", "2", "3"], ["1", "2"], ["2"], ["3"])


@pytest.mark.parametrize("has_pidfd", [True, False])
def test_nobody_is_killed_in_a_process_that_took_over_the_number(
    has_pidfd, process_way, monkeypatch
):
    """A pid alone is no identity: the process that has it must have started when the agent did."""
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    from ultramon.cli.chaos.victims import kill_process
    from ultramon.system.processes import process_started_at

    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        started_at = process_started_at(process.pid)
        assert not kill_process(process.pid, f"{started_at}0")
        assert process.poll() is None
        assert kill_process(process.pid, started_at)
        assert process.wait() == -signal.SIGKILL
    assert not kill_process(process.pid, started_at)
