"""Killed, resumed: whether a session lives is known from its process, not from silence."""

import json
import os
import signal
import subprocess
import threading

import pytest
from helpers import program

from real_client.api import Reply, agent, bash, marked
from real_client.client import RUN_SECONDS, finish, until
from ultramon.hosts.calls.hosted_agent import CUT_TURN

pytestmark = pytest.mark.real_client


@pytest.fixture
def killed(installed, api):
    """A session that was killed while it waited for the model."""
    gate = threading.Event()
    api.play(
        bash(20_000, "echo 1"),
        bash(120_000, "echo 2"),
        bash(132_000, "echo 3"),
        Reply(133_000, "Too late.", gate=gate),
    )
    process = installed.start(marked("fill the window"))
    try:
        api.wait_for_turns(4)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        gate.set()
        session = finish(process)
    assert session.returncode == -signal.SIGKILL
    return session


@pytest.mark.parametrize(
    "name",
    [
        "TERM",
        pytest.param("HUP", marks=pytest.mark.exhaustive),
        pytest.param("INT", marks=pytest.mark.exhaustive),
    ],
)
def test_a_session_that_a_signal_ends_in_a_turn_is_cancelled(installed, api, states, name):
    """In a tool and while the model replies; `resume` lists both, and what ended by itself not."""
    number, gate = getattr(signal, f"SIG{name}"), threading.Event()
    os.mkfifo(installed.project / "fifo")
    api.play(bash(20_000, "cat fifo"))
    in_tool = installed.start(marked("read the pipe"))
    until(lambda: any(one.phase == "in_tool" for one in states.all().values()), "the tool runs")
    in_tool.send_signal(number)
    finish(in_tool)
    api.play(bash(20_000, "true"), Reply(21_000, "Too late.", gate=gate))
    in_reply = installed.start(marked("begin"))
    try:
        api.wait_for_turns(3)
        in_reply.send_signal(number)
        finish(in_reply)
    finally:
        gate.set()
    api.play(bash(20_000, "true"), Reply(21_000, "Done."))
    installed.run(marked("end"))
    cut = ("cancelled", {"reason": CUT_TURN})
    ends = [(one.outcome, one.exit) for one in states.all().values()]
    assert sorted(ends, key=str) == sorted([cut, cut, ("completed", {"reason": "other"})], key=str)
    done = program.run("resume", "--json", "--state-dir", states.directory)
    assert len(json.loads(done.stdout)["sessions"]) == 2


def test_a_killed_session_is_lost_at_the_next_look(killed, states, fleet):
    """No hook ran at its end; its process is gone, and that is enough."""
    shown = states.status()[killed.session_id]
    assert shown["liveness"] == "lost"
    assert "is gone" in shown["livenessReason"]
    lost = [event for event in fleet.poll() if event.name == "lost"]
    assert [event.agent_id for event in lost] == [killed.session_id]


def test_resume_prints_the_command_that_goes_on_with_a_killed_session(
    killed, installed, states, api, tmp_path
):
    """Pasted into a shell, the command reaches the same session in its project."""
    done = program.run("resume", "--json", "--state-dir", states.directory)
    (session,) = json.loads(done.stdout)["sessions"]
    assert (session["agentId"], session["thresholdStatus"]) == (killed.session_id, "warning")
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    (bin_directory / "claude").symlink_to(installed.program)
    environment = installed.environment()
    environment["PATH"] = f"{bin_directory}:{environment['PATH']}"
    api.play(Reply(134_000, "Done."))
    resumed = subprocess.run(
        f"{session['command']} -p '{marked('go on')}'",
        shell=True,
        cwd="/",
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=RUN_SECONDS,
    )
    assert (resumed.returncode, resumed.stdout) == (0, "Done.\n"), resumed.stderr
    assert set(states.all()) == {killed.session_id}


def test_a_resumed_session_is_the_same_agent_in_the_next_generation(killed, installed, api, states):
    """`--resume` takes the agent over with what it held; it does not announce the level again."""
    api.play(bash(133_000, "echo 4"), Reply(134_000, "Done."))
    session = installed.run(marked("go on"), "--resume", killed.session_id)
    assert session.session_id == killed.session_id
    before = api.turns()[3].seen[killed.session_id]
    after = api.turns()[-1].seen[killed.session_id]
    assert (after.generation, after.epoch) == (before.generation + 1, before.epoch)
    assert after.pid != before.pid
    assert (after.estimated_tokens, after.threshold_status) == (133_000, "warning")
    assert set(states.all()) == {killed.session_id}
    assert not states.only().active


def test_an_ended_session_that_is_resumed_lives_again(installed, api, states):
    """The end of a session is not the end of its agent."""
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Done."))
    session_id = installed.run(marked("begin")).session_id
    assert not states.only().active
    api.play(bash(22_000, "echo 2"), Reply(23_000, "Done."))
    installed.run(marked("go on"), "--resume", session_id)
    during = api.turns()[-1].seen[session_id]
    assert (during.active, during.outcome, during.generation) == (True, None, 2)
    assert not states.only().active


def test_the_final_state_is_the_last_reply(installed, api, states):
    """Of the session, which ends after its transcript, and of a subagent, which ends before."""
    gate = threading.Event()
    api.play(agent(20_000, "scout"), bash(21_000, "echo 1", gate=gate), Reply(140_000, "Done."))
    api.whenever(Reply(141_000, "Fine."))
    api.play(bash(8_000, "echo 1"), Reply(170_000, "Seen."), conversation="scout")
    process = installed.start(marked("have somebody look"))
    try:
        until(lambda: [one for one in states.all().values() if one.outcome], "the subagent ended")
    finally:
        gate.set()
        session_id = finish(process).session_id
    main = states.all().pop(session_id)
    (child,) = (one for name, one in states.all().items() if name != session_id)
    assert (child.outcome, child.estimated_tokens) == ("completed", 170_000)
    assert (child.threshold_status, main.threshold_status) == ("critical", "warning")
    assert main.estimated_tokens in (140_000, 141_000)


def test_a_fork_is_an_agent_of_its_own(installed, api, states):
    """`--fork-session` begins a new session; the one it came from stays as it ended."""
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Done."))
    first = installed.run(marked("begin")).session_id
    api.play(bash(22_000, "echo 2"), Reply(23_000, "Done."))
    second = installed.run(marked("go on"), "--resume", first, "--fork-session").session_id
    assert second != first
    during = api.turns()[-1].seen
    assert (during[first].active, during[second].active) == (False, True)
    assert (during[first].generation, during[second].generation) == (1, 1)
    assert set(states.all()) == {first, second}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_a_session_that_is_told_to_end_is_an_ended_agent(installed, api, states, number):
    """The client has its hooks run before it obeys."""
    gate = threading.Event()
    api.play(bash(20_000, "echo 1"), Reply(21_000, "Too late.", gate=gate))
    process = installed.start(marked("begin"))
    try:
        api.wait_for_turns(2)
    finally:
        os.kill(process.pid, number)
        finish(process)
        gate.set()
    assert not states.only().active
    assert states.status()[states.only().agent_id]["liveness"] == "ended"
