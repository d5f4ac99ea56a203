"""On a terminal: the status line, an idle prompt, commands that compact and clear."""

import json
import os
import subprocess
import threading
from contextlib import closing

import pytest
from helpers.program import PROGRAM
from helpers.requirements import require_tool
from helpers.terminal import Terminal

from real_client.api import Reply, agent, bash, marked
from real_client.client import WINDOW_TOKENS, until
from real_client.relaying import create
from real_client.watch import Note, new_notes
from ultramon.backends.local.backend import LocalBackend
from ultramon.hosts.claude_code.install.commands import HOOK_SCRIPT, LAUNCHERS
from ultramon.routing import Inbox, register, registrations

pytestmark = pytest.mark.real_client


@pytest.fixture
def on_terminal(client, states):
    """Start a session on a terminal; it is ready for input, and its agent waits."""
    require_tool("tmux")
    left = []

    def start(*arguments, **environment):
        terminal = client.terminal(*arguments, **environment)
        screen = terminal.__enter__()
        left.append(terminal)
        until(lambda: at_rest(states), "the session is at its prompt")
        screen.wait_for("❯")
        return screen

    yield start
    for terminal in left:
        terminal.__exit__(None, None, None)


def living(states):
    return [record for record in states.all().values() if record.active]


def at_rest(states):
    """The one living session, when it waits for its user."""
    found = [record for record in living(states) if record.phase == "waiting"]
    return found[0] if len(found) == 1 else None


def test_a_session_on_a_terminal_waits_works_and_runs_tools(installed, on_terminal, api, states):
    """At its prompt it is `waiting`, in a tool `in_tool`; the terminal's pane is known."""
    fifo = installed.project / "fifo"
    os.mkfifo(fifo)
    gate = threading.Event()
    api.play(bash(20_000, "cat fifo"), Reply(21_000, "Read.", gate=gate))
    screen = on_terminal()
    (session,) = living(states)
    assert session.extra["claudeCode"]["tmuxPane"] == "%0"
    screen.enter(marked("read the pipe"))
    until(lambda: living(states)[0].phase == "in_tool", "the tool runs")
    # Opening a pipe for writing waits for its reader.
    fifo.write_text("what was waited for\n")
    until(lambda: living(states)[0].phase == "working", "the tool has run")
    gate.set()
    screen.wait_for("Read.")
    until(lambda: at_rest(states), "the session is at its prompt again")
    assert api.turns()[-1].count("what was waited for") == 1


def test_the_status_line_tells_the_window(installed, on_terminal, api, states):
    """The client's own number beats what is known of the model, and our line is shown."""
    api.play(
        Reply(60_000, "First."),
        bash(120_000, "echo 1"),
        bash(140_000, "echo 2"),
        Reply(141_000, "Second."),
    )
    screen = on_terminal("--model", "claude-sonnet-5", CLAUDE_CODE_DISABLE_1M_CONTEXT="1")
    screen.enter(marked("begin"))
    screen.wait_for("30% 60k/200k")
    screen.enter("go on")
    screen.wait_for("Second.")
    assert new_notes(api.turns()[-1]) == [Note(140_000, 200_000, 70)]
    (session,) = living(states)
    assert (session.context_window, session.limit_source) == (200_000, "host")


def test_a_status_line_that_was_there_is_still_shown(client, install, on_terminal, api):
    """The line of another tool gets the client's numbers as before; ours learns them beside it."""
    settings = json.loads(client.settings.read_text())
    own = "cat | sed 's/.*context_window_size\":\\([0-9]*\\).*/mine says \\1/'"
    settings["statusLine"] = {"type": "command", "command": own}
    client.settings.write_text(json.dumps(settings))
    install()
    api.play(Reply(60_000, "First."))
    screen = on_terminal()
    screen.enter(marked("begin"))
    screen.wait_for("First.")
    screen.wait_for("mine says 200000")


def test_compact_and_clear_are_followed(installed, on_terminal, api, states):
    """`/compact` is a new epoch of the agent, `/clear` its end and the start of another."""
    api.play(
        bash(20_000, "echo 1"),
        bash(120_000, "echo 2"),
        bash(140_000, "echo 3"),
        Reply(141_000, "First."),
    )
    screen = on_terminal()
    screen.enter(marked("begin"))
    screen.wait_for("First.")
    first = until(lambda: at_rest(states), "the first answer is there")
    assert (first.epoch, first.threshold_status) == (1, "warning")
    screen.enter("/compact")
    compacted = until(
        lambda: (one := states.all()[first.agent_id]).epoch == 2 and one, "the new epoch"
    )
    assert compacted.threshold_status != "warning"
    assert len(api.compactions()) == 1
    until(lambda: at_rest(states), "the session is at its prompt after the compaction")
    screen.enter("/clear")
    second = until(
        lambda: (one := at_rest(states)) and not states.all()[first.agent_id].label and one,
        "another session began in the place of the first",
    )
    assert (second.epoch, second.threshold_status, second.usage_ratio) == (1, None, None)
    assert not states.all()[first.agent_id].active
    assert second.pid == first.pid
    assert (second.label, states.all()[first.agent_id].label) == (first.label, None)
    assert list(states.status(show_all=False)) == [second.agent_id]


def test_a_clear_leaves_subagents_at_work_and_notices_on_their_way(
    installed, on_terminal, api, states
):
    """What is registered for a session holds for the one that follows, in the same process."""
    gate = threading.Event()
    api.play(
        agent(20_000, "scout"),
        Reply(161_000, "First."),
        bash(20_000, "echo 1"),
        bash(162_000, "echo 2"),
        Reply(163_000, "Second."),
    )
    api.whenever(Reply(1_000, "Fine."), conversation="")
    api.play(
        bash(20_000, "echo 1"),
        bash(50_000, "echo 2", gate=gate),
        Reply(60_000, "Seen."),
        conversation="scout",
    )
    screen = on_terminal(ULTRAMON_PARENT_ID="boss")
    (first,) = living(states)
    with closing(LocalBackend(str(states.directory))) as backend:
        register(first.agent_id, "boss", thresholds=[0.8], backend=backend)
        screen.enter(marked("begin"))
        screen.wait_for("First.")
        api.wait_for_turns(2, "scout")
        told = until(lambda: Inbox("boss", backend=backend).peek(), "the parent is notified")
        assert [(one.agent_id, one.facts["kind"]) for one in told] == [(first.agent_id, "level")]
        label = states.all()[first.agent_id].label
        screen.enter("/clear")
        until(lambda: not states.all()[first.agent_id].active, "the first session ended")
        (moved,) = until(
            lambda: [
                one for one in registrations(backend=backend) if one.agent_id != first.agent_id
            ],
            "the registration has moved",
        )
        until(lambda: len(living(states)) == 2, "the second session and the subagent live")
        second, child = sorted(living(states), key=lambda one: one.agent_id != moved.agent_id)
        assert (second.parent_id, second.pid, second.label) == ("boss", first.pid, label)
        gate.set()
        until(lambda: states.all()[child.agent_id].outcome == "completed", "the subagent ended")
        child = states.all()[child.agent_id]
        assert (child.parent_id, child.estimated_tokens) == (second.agent_id, 60_000)
        until(lambda: at_rest(states), "the session has heard of the subagent")
        screen.enter(marked("go on"))
        (level,) = until(
            lambda: [
                one for one in Inbox("boss", backend=backend).peek() if one.facts["kind"] == "level"
            ],
            "the parent is notified of the second session",
        )
        assert level.agent_id == second.agent_id
        screen.wait_for("Second.")
    assert set(states.all()) == {first.agent_id, second.agent_id, child.agent_id}


def test_a_compaction_shows_no_shell_command(installed, on_terminal, api, states):
    """The client names the hooks that ran, each on one line: the path of the launcher."""
    api.play(bash(20_000, "echo 1"), Reply(21_000, "First."))
    screen = on_terminal()
    screen.enter(marked("begin"))
    screen.wait_for("First.")
    screen.enter("/compact")
    hook = states.directory / LAUNCHERS[HOOK_SCRIPT]
    for event in ("PreCompact", "PostCompact"):
        shown = f"{event}[exec{hook}]completed"  # a long path is broken at the screen's edge
        until(lambda: shown in "".join(screen.screen.split()), shown)  # noqa: B023
    assert "||" not in screen.screen


def test_a_turn_without_tools_is_told_with_the_next_prompt(installed, on_terminal, api, states):
    """The level that the last answer reached is known when the user speaks again."""
    api.play(Reply(60_000, "First."), Reply(140_000, "Second."), Reply(141_000, "Third."))
    screen = on_terminal()
    for prompt, tokens in ((marked("begin"), 60_000), ("go on", 140_000), ("more", 141_000)):
        screen.enter(prompt)
        # The client writes an answer down a moment after it shows it; no user types that fast.
        until(
            lambda: (one := at_rest(states)) and one.estimated_tokens == tokens,  # noqa: B023
            f"the session is at its prompt with {tokens:,} tokens",
        )
    assert [new_notes(turn) for turn in api.turns()] == [[], [], [Note(140_000, WINDOW_TOKENS, 70)]]


def test_a_question_to_the_user_is_waiting(client, installed, on_terminal, api, states):
    """A tool that needs permission runs only after the answer, and so does the agent's phase."""
    settings = json.loads(client.settings.read_text())
    settings["permissions"] = {"ask": ["Bash"]}
    client.settings.write_text(json.dumps(settings))
    gate = threading.Event()
    api.play(bash(20_000, "touch made"), Reply(21_000, "Done.", gate=gate))
    screen = on_terminal()
    screen.enter(marked("make it"))
    screen.wait_for("Do you want to proceed?")
    # The question is drawn beside the hook that hears of it.
    until(lambda: living(states)[0].phase == "waiting", "the question is known")
    assert not (client.project / "made").exists()
    # For a moment after it appears the question takes no answer.
    until(lambda: screen.press("1") or (client.project / "made").exists(), "the answer is taken")
    # A resident stores behind its answer.
    until(lambda: living(states)[0].phase == "working", "the tool has run")
    gate.set()
    screen.wait_for("Done.")


def test_leaving_the_prompt_ends_the_agent(installed, on_terminal, api, states):
    """`/exit` is the end of the session."""
    api.play(Reply(20_000, "First."))
    screen = on_terminal()
    screen.enter(marked("begin"))
    screen.wait_for("First.")
    screen.enter("/exit")
    until(lambda: not living(states), "the agent has ended")


def test_escape_in_a_tool_is_waiting(installed, on_terminal, api, states):
    """The client calls no hook on it; what it redraws tells."""
    fifo = installed.project / "fifo"
    os.mkfifo(fifo)
    api.play(bash(20_000, "cat fifo"))
    screen = on_terminal()
    screen.enter(marked("read the pipe"))
    until(lambda: living(states)[0].phase == "in_tool", "the tool runs")
    screen.press("Escape")
    until(lambda: at_rest(states), "the session waits for its user")


def test_a_full_session_is_continued_in_a_fresh_one(installed, api, states):
    """Goal, rules and open tasks word for word, in the first request of a session of its own."""
    require_tool("tmux")
    goal = marked("Write every file of the list.\nKeep their names.")
    api.play(create(20_000, "first", "second"), Reply(150_000, "The first is half done."))
    installed.run(goal)
    environ = installed.environment(ULTRAMON_STATE_DIR=str(states.directory))
    environ["PATH"] = f"{installed.program.parent}:{environ['PATH']}"
    pinned = subprocess.run(
        [PROGRAM, "host", "pin", "Never touch  the schema."],
        cwd=installed.project,
        env=environ,
        check=False,
    )
    assert pinned.returncode == 0
    api.play(Reply(21_000, "I continue."))
    with closing(Terminal([PROGRAM, "continue"], installed.project, environ, 60)) as screen:
        screen.wait_for("I continue.")
    turn = api.turns()[-1]
    for text in (goal, "1. Never touch  the schema.", "- first\n- second", "> The first is half"):
        assert turn.count(text) == 1, text
    (before, after) = sorted(states.all().values(), key=lambda record: record.started_at)
    assert before.session_id != after.session_id
    assert before.estimated_tokens == 150_000 > after.estimated_tokens
