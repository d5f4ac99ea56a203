"""A session that is notified about another agent is so by its own next hook."""

import json
import threading

import pytest
from helpers.requirements import require_tool

from real_client.api import Reply, agent, bash, marked
from real_client.client import finish, until
from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.inbox_flags import is_raised
from ultramon.hosts.failure_log import log_path
from ultramon.hosts.failure_log import read as read_failures
from ultramon.routing import Inbox

pytestmark = pytest.mark.real_client

WINDOW = ContextConfig(context_window_tokens=200_000)
WARNED = "[ultramon] Context window of {} is at 75% (warning, 70 %"
CRITICAL = "[ultramon] Context window of {} is at 90% (critical, 85 %"
ENDED = "[ultramon] {} has ended: completed."
COMPACTED = (
    "[ultramon] Context window of {} was compacted: 150,000 tokens before, 40,000 tokens after."
)


@pytest.fixture
def backend(states):
    backend = LocalBackend(str(states.directory))
    yield backend
    backend.close()


def child_of(session_id, name, backend):
    """An agent of another program that tells the session about itself."""
    return create_context_monitor(
        name, WINDOW, parent_id=session_id, notify="parent", backend=backend
    )


def entrypoint_of(record):
    """What the client sent its hooks about how it runs."""
    return record.extra["claudeCode"]["environment"]["CLAUDE_CODE_ENTRYPOINT"]


def told_by(client, text):
    """The events by which a text came into the conversation, as the client wrote them down."""
    return [
        entry["attachment"]["hookEvent"]
        for path in client.configuration.glob("projects/**/*.jsonl")
        for entry in map(json.loads, path.read_text().split("\n")[:-1])
        if entry.get("type") == "attachment"
        and entry["attachment"].get("type") == "hook_additional_context"
        and text in "\n".join(entry["attachment"]["content"])
    ]


def told_at(api, text):
    """The requests in which a text is new to the model."""
    return [number for number, turn in enumerate(api.turns()) if turn.fresh(text)]


def test_a_headless_session_is_told_at_its_next_call(installed, api, states, backend):
    """Warning and compaction, which wait for a prompt elsewhere, come with a tool's result."""
    gates = [threading.Event() for _ in range(3)]
    api.play(*(bash(20_000, "echo 1", gate=gate) for gate in gates), Reply(21_000, "Done."))
    process = installed.start(marked("work"))
    try:
        api.wait_for_turns(1)
        session = states.only()
        assert entrypoint_of(session) == "sdk-cli"
        with child_of(session.agent_id, "scout-1", backend) as monitor:
            monitor.report_usage(input_tokens=150_000)
            gates[0].set()
            api.wait_for_turns(2)
            monitor.record_compaction(tokens_after=40_000)
            gates[1].set()
            api.wait_for_turns(3)
        gates[2].set()
    finally:
        for gate in gates:
            gate.set()
        ended = finish(process)
    assert ended.result["result"] == "Done."
    for text, turn in ((WARNED, 1), (COMPACTED, 2), (ENDED, 3)):
        assert told_at(api, text.format("scout-1")) == [turn]
        assert told_by(installed, text.format("scout-1")) == ["PostToolUse"]
    assert Inbox(session.agent_id, backend=backend).peek() == []
    assert read_failures(log_path(str(states.directory), "claude-code")) == []


def test_on_a_terminal_what_is_urgent_comes_at_once_and_the_rest_with_a_prompt(
    client, installed, api, states, backend
):
    """A warning waits until the person speaks, a critical level does not."""
    require_tool("tmux")
    gate = threading.Event()
    api.play(
        Reply(19_000, "Ready."),
        bash(20_000, "echo 1", gate=gate),
        bash(20_000, "echo 2"),
        Reply(21_000, "First."),
        Reply(22_000, "Second."),
    )

    def at_rest():
        return states.all()[session_id].phase == "waiting"

    with client.terminal() as screen:
        session_id = until(lambda: next(iter(states.all()), None), "the session has begun")
        until(at_rest, "the session is at its prompt")
        screen.wait_for("❯")
        screen.enter(marked("begin"))
        screen.wait_for("Ready.")
        until(at_rest, "the first turn is over")
        screen.enter("work")
        api.wait_for_turns(2)
        with child_of(session_id, "scout-2", backend) as filling:
            with child_of(session_id, "scout-1", backend) as full:
                full.report_usage(input_tokens=180_000)
                filling.report_usage(input_tokens=150_000)
                gate.set()
                screen.wait_for("First.")
                until(at_rest, "the second turn is over")
            screen.enter("go on")
            screen.wait_for("Second.")
        # The client writes down a moment after it shows.
        until(lambda: told_by(installed, ENDED.format("scout-1")), "the transcript is written")
    assert entrypoint_of(states.all()[session_id]) == "cli"
    for text, turn, event in (
        (CRITICAL.format("scout-1"), 2, "PostToolUse"),
        (WARNED.format("scout-2"), 4, "UserPromptSubmit"),
        (ENDED.format("scout-1"), 4, "UserPromptSubmit"),
    ):
        assert told_at(api, text) == [turn]
        assert told_by(installed, text) == [event]
    (waiting,) = Inbox(session_id, backend=backend).peek()
    assert waiting.text == ENDED.format("scout-2")


def test_a_session_hears_that_its_subagent_was_compacted(installed, api, states):
    """Without a registration, at the session's next moment; the subagent hears nothing."""
    gate = threading.Event()
    api.play(agent(44_000, "scout"), bash(45_000, "echo 1", gate=gate), Reply(46_000, "Done."))
    api.whenever(Reply(46_500, "Fine."))
    api.play(
        bash(20_000, "echo 1"),
        bash(70_000, "echo 2"),
        bash(15_000, "echo 3"),
        Reply(17_000, "Seen."),
        conversation="scout",
    )
    process = installed.start(
        marked("have somebody look"), CLAUDE_CODE_AUTO_COMPACT_WINDOW="100000"
    )
    try:
        api.wait_for_turns(4, "scout")
    finally:
        gate.set()
        session = finish(process)
    scout = api.turns("scout")
    text = (
        f"[ultramon] Context window of {scout[0].headers['x-claude-code-agent-id']} was compacted"
    )
    assert [turn.count(text) for turn in scout] == [0] * len(scout)
    assert len(told_at(api, text)) == 1
    assert len(told_by(installed, text)) == 1
    assert not is_raised(str(states.directory), session.session_id, also_later=True)
    assert read_failures(log_path(str(states.directory), "claude-code")) == []
