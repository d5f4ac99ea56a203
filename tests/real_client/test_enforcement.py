"""An agent that ignores the request to return is ended; one that returns is left alone."""

import subprocess
import uuid

import pytest
from helpers.requirements import require_tool

from real_client.api import Call, Reply, agent, bash, marked
from real_client.client import MODEL, RUN_SECONDS, until
from ultramon.hosts.calls.enforcement import REFS, REPLIES_TO_RETURN
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED
from ultramon.relay.launchers.claude_code import ClaudeCodeLauncher
from ultramon.relay.launchers.outcome import STOPPED

pytestmark = pytest.mark.real_client

FULL = 160_000
RULE = "The user has chosen that a hook ends this turn"


@pytest.fixture
def enforcing(install):
    """A client with our hooks, which enforce; its project is a repository with a new file."""
    client = install("--enforce", "critical", "--context-limit", "200000")
    subprocess.run(["git", "init", "-q", client.project], check=True)
    (client.project / "work.txt").write_text("half\n")
    return client


def going_on():
    """It fills its window, is warned, and continues as long as it may."""
    return [bash(FULL + number, f"echo {number}") for number in range(REPLIES_TO_RETURN)]


def kept_files(client, agent_id):
    ref = f"{REFS}/{agent_id.replace('.', '-')}"
    done = subprocess.run(
        ["git", "-C", client.project, "ls-tree", "-r", "--name-only", ref],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(done.stdout.split())


def test_a_session_that_ignores_the_request_is_ended(enforcing, api, states):
    """Its turn is over after the fourth reply: all calls of it have run, and are kept."""
    last = ("touch one", "touch two", "touch three")
    api.play(*going_on(), bash(FULL + 9, *last))
    session = enforcing.run(marked("fill the window"))
    assert [turn.count(RULE) for turn in api.turns()] == [0, 1, 1, 1]
    assert session.result["terminal_reason"] == "hook_stopped"
    assert session.returncode == 0
    record = states.all()[session.session_id]
    assert (record.active, record.outcome, record.exit) == (
        False, "cancelled", {"reason": NOT_RETURNED},
    )  # fmt: skip
    assert record.handoff["reason"] == "threshold_critical"
    assert {"work.txt", "one", "two", "three"} <= kept_files(enforcing, session.session_id)


@pytest.mark.parametrize("in_background", [False, True], ids=["foreground", "background"])
def test_a_subagent_that_ignores_the_request_is_ended_and_its_launcher_is_told(
    enforcing, api, states, in_background
):
    work = {
        "description": "count the files", "prompt": marked("count", "scout"),
        "subagent_type": "general-purpose", "run_in_background": in_background,
    }  # fmt: skip
    api.play(Reply(20_000, calls=(Call("Agent", work),)), Reply(21_000, "It looks."))
    if in_background:
        api.play(Reply(22_000, "It has ended."))
    api.play(*going_on(), bash(FULL + 9, "touch one"), conversation="scout")
    session = enforcing.run(marked("have somebody count"))
    (child,) = (one for name, one in states.all().items() if name != session.session_id)
    assert (child.active, child.outcome, child.exit) == (
        False, "cancelled", {"reason": NOT_RETURNED},
    )  # fmt: skip
    assert child.handoff is not None
    assert {"work.txt", "one"} <= kept_files(enforcing, child.agent_id)
    texts = [text for turn in api.turns() for text in turn.fresh("[ultramon] Subagent ")]
    assert len(texts) == 1
    assert f" did not finish: {NOT_RETURNED}; it returned no text." in texts[0]
    assert "The working tree at its end is kept as " in texts[0]
    assert states.all()[session.session_id].outcome == "completed"


def test_a_session_and_a_subagent_that_return_are_left_alone(enforcing, api, states):
    """They note what is left with two further calls, and end their turn."""
    api.play(agent(20_000, "scout"), *going_on(), Reply(FULL + 9, "Done: all."))
    api.play(*going_on(), Reply(FULL + 9, "Done: half."), conversation="scout")
    api.whenever(Reply(FULL + 10, "Done: all."))
    session = enforcing.run(marked("work on"))
    assert session.result["result"] == "Done: all."
    assert {one.outcome for one in states.all().values()} == {"completed"}
    assert [one.handoff for one in states.all().values()] == [None, None]


def test_a_turn_that_was_ended_on_a_terminal_leaves_the_session_to_the_person(
    enforcing, api, states
):
    """It shows why and waits; asked to continue, it does, and is not ended again."""
    require_tool("tmux")
    api.play(*going_on(), bash(FULL + 9, "echo last"))
    with enforcing.terminal() as terminal:
        until(states.all, "the session has begun")
        terminal.wait_for("❯")
        terminal.enter(marked("fill the window"))
        terminal.wait_for("ended this turn")
        (record,) = states.all().values()
        assert (record.active, record.phase) == (True, "waiting")
        assert record.handoff is not None
        api.play(bash(FULL + 10, "echo more"), Reply(FULL + 11, "All is done."))
        terminal.enter("go on")
        terminal.wait_for("All is done.")


def test_a_dry_run_ends_nobody(install, api, states):
    install("--enforce", "critical", "--context-limit", "200000", "--enforce-dry-run")
    client = install()
    api.play(*going_on(), bash(FULL + 9, "echo last"), Reply(FULL + 10, "Done."))
    session = client.run(marked("fill the window"))
    assert session.result["result"] == "Done."
    assert api.turns()[-1].count(RULE) == 0
    assert "wouldEnforce" in states.all()[session.session_id].extra["claudeCode"]


def test_a_relay_ends_its_own_context_beside_an_installation(install, api, states, tmp_path):
    """The installed hooks leave the session to those of the relay."""
    client = install()
    launcher = ClaudeCodeLauncher(
        "review", str(states.directory), program=str(client.program),
        arguments=["--model", MODEL], context_limit_tokens=200_000, enforce=True,
    )  # fmt: skip
    launcher.prepare()
    api.play(*going_on(), bash(FULL + 9, "echo last"))
    command = launcher.command(
        marked("fill the window"), cwd=str(client.project), session_id=str(uuid.uuid4()),
        environ=client.environment(),
    )  # fmt: skip
    output = tmp_path / "output"
    process = command.start(str(output), str(tmp_path / "errors"))
    code = process.wait(timeout=RUN_SECONDS)
    with output.open("rb") as lines:
        assert launcher.read_outcome(lines, code).end == STOPPED
    assert [turn.count("Context window: ") for turn in api.turns()] == [0, 1, 1, 1]
    (record,) = states.all().values()
    assert (record.outcome, record.exit) == ("cancelled", {"reason": NOT_RETURNED})
