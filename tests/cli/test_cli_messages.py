"""`messages` and `queue`: what agents are sent, and what could not be delivered."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest
from helpers.program import PROGRAM, environment, run

from ultramon.backends.opening import open_backend
from ultramon.cli.exit_codes import ExitCode
from ultramon.notices.message import Draft
from ultramon.system.environment import state_directory


@pytest.fixture
def backend(shared_store):
    with closing(open_backend()) as backend:
        # A database that is busy for 40 ms must not make the id of a message 0.
        backend.queue.patience_seconds = 30.0
        yield backend


@pytest.fixture
def surroundings(backend):
    return {
        "ULTRAMON_STATE_DIR": state_directory(),
        "ULTRAMON_AGENT_ID": "boss",
        "CLAUDE_SESSION_MANAGER_ID": "",
    }


@pytest.fixture
def call(surroundings):
    return lambda *arguments, **environ: run(*arguments, **{**surroundings, **environ})


@pytest.fixture
def send(backend):
    def send(text, recipient="boss", now=None, **message):
        draft = Draft(recipient, text, **message)
        return backend.queue.queue_message(draft, now=time.time() if now is None else now)

    return send


def said(done, code=ExitCode.OK):
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def kill(backend, message_id):
    """Let a message die that is never acknowledged."""
    at = time.time()
    for _ in range(5):
        (message,) = backend.queue.claim("boss", now=at, limit=1)
        assert message.id == message_id
        backend.queue.reject(message.id, message.claim_token, "no\x1b[2J room", now=at)
        at += 60


def test_looking_receives_nothing(send, call):
    """One line each, in the order of sending, as often as one looks."""
    send("first", sender="scout-1", category="context_monitor")
    send("second", delivery="urgent")
    send("not mine", "other")
    for _ in range(2):
        lines = said(call("queue", "messages"))
        assert [line.split("  ", 1)[1] for line in lines] == [
            "sequential  scout-1  first",
            "urgent      -  second",
        ]
    assert len(said(call("queue", "messages", "other"))) == 1


def test_receiving_ends_them(send, call, backend):
    """Urgent first; printed, acknowledged, gone."""
    for number in range(25):
        send(str(number))
    send("now", delivery="urgent")
    lines = said(call("queue", "messages", "--ack"))
    assert [line.rsplit("  ", 1)[1] for line in lines] == ["now", *map(str, range(25))]
    done = call("queue", "messages", "--ack")
    assert (said(done), done.stderr) == ([], "no messages\n")
    assert backend.queue.depth(now=time.time()) == []


def test_messages_as_json(send, call):
    """One object a line, with text and facts made harmless."""
    send("a\x1b[2Jb", sender="scout-1", facts={"kind": "level", "level": "\u202ex"})
    (line,) = said(call("queue", "messages", "--json"))
    message = json.loads(line)
    assert message["text"] == "a\\x1b[2Jb"
    assert message["facts"] == {"kind": "level", "level": "\\u202ex"}
    assert (message["agentId"], message["recipient"], message["attempts"]) == ("scout-1", "boss", 0)
    assert "claimToken" not in message
    assert said(call("queue", "messages", "--json", "--ack"))
    done = call("queue", "messages", "--json")
    assert (said(done), done.stderr) == ([], "")


def test_a_message_cannot_steer_the_terminal(send, call):
    """Neither in its text, nor with a line of its own that looks like another message."""
    send("a\x1b[2J\nb\u202e", sender="scout-1")
    (line,) = said(call("queue", "messages"))
    assert line.endswith("scout-1  a\\x1b[2J\\x0ab\\u202e")


def test_messages_needs_a_recipient(call):
    """A person names one; a name that nobody has, and nobody was sent anything, is an error."""
    done = call("queue", "messages", ULTRAMON_AGENT_ID="")
    assert said(done, ExitCode.USAGE) == []
    assert done.stderr.startswith(
        "Error: no agent: name one, or run ultramon queue messages inside"
    )
    assert said(call("queue", "messages", "nobody"), ExitCode.NOT_FOUND) == []


@pytest.mark.parametrize("ack", [True, False])
def test_following_shows_what_comes(send, surroundings, backend, ack):
    """Also what comes later, once each; interrupted it ends well."""
    send("before")
    process = subprocess.Popen(
        [PROGRAM, "queue", "messages", "--follow", *(["--ack"] if ack else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**surroundings, PYTHONUNBUFFERED="1"),
    )
    try:
        for text in ("before", "later", "last"):
            assert process.stdout.readline().rstrip("\n").endswith(f"  {text}")
            if text != "last":
                send("later" if text == "before" else "last")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (0, "", "")
    left = [message.text for message in backend.queue.peek("boss", now=time.time())]
    assert set(left) <= {"last"} if ack else left == ["before", "later", "last"]


def test_following_ends_with_its_reader(surroundings):
    """A command that nobody reads any more does not live on."""
    process = subprocess.Popen(
        [PROGRAM, "queue", "messages", "--follow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**surroundings),
    )
    process.stdout.close()
    with process.stderr:
        assert process.wait(timeout=30) == 0


def test_the_dead_are_listed_tried_again_and_dropped(send, call, backend):
    """By their numbers; what is not dead is said, and ends with an error."""
    first = send("poison", sender="scout-1", category="handoff")
    kill(backend, first)
    second = send("other poison")
    kill(backend, second)
    lines = said(call("queue", "dead"))
    assert lines[0].startswith(f"{first}  to boss from scout-1, 20")
    assert lines[0].endswith("5 attempts, no\\x1b[2J room: poison")
    assert len(lines) == 2
    shown = json.loads("".join(said(call("queue", "dead", "boss", "--json"))))["dead"]
    assert [one["messageId"] for one in shown] == [first, second]
    assert shown[0]["lastError"] == "no\\x1b[2J room"
    assert said(call("queue", "dead", "other")) == []
    assert said(call("queue", "retry", first)) == [f"{first} is tried again"]
    done = call("queue", "drop", first, second, 99)
    assert said(done, ExitCode.FAILURE) == [f"{second} dropped"]
    assert done.stderr == f"Error: not dead, or replaced: {first}, 99\n"
    assert [line.rsplit("  ", 1)[1] for line in said(call("queue", "messages", "--ack"))] == [
        "poison"
    ]
    done = call("queue", "dead")
    assert (said(done), done.stderr) == ([], "no dead messages\n")


def test_depth_counts_by_recipient(send, call, backend):
    """What is ready, claimed or dead, and since when."""
    kill(backend, send("poison"))
    send("one", now=time.time() - 7300)
    send("two", "other")
    backend.queue.claim("other", now=time.time())
    boss, other = said(call("queue", "depth"))
    assert boss == "boss  1 ready, 1 dead, the oldest 2 h ago"
    assert other.startswith("other  1 claimed, the oldest ")
    (shown,) = json.loads("".join(said(call("queue", "depth", "boss", "--json"))))["recipients"]
    assert (shown["ready"], shown["dead"], shown["dropped"]) == (1, 1, 0)
    done = call("queue", "depth", "nobody")
    assert (said(done), done.stderr) == ([], "nothing waits\n")


@pytest.mark.parametrize(
    "arguments",
    [("bury",), ("retry",), ("drop",), ("retry", "one"), ("drop", "-1"), ("retry", "9" * 30)],
)
def test_wrong_usage_of_the_queue(call, arguments):
    """It ends with 2 and changes nothing."""
    done = call("queue", *arguments)
    assert said(done, ExitCode.USAGE) == []
    assert "Error: " in done.stderr


def test_looking_at_nothing_makes_no_directory(call, backend):
    """Neither command writes where nothing was ever written."""
    for arguments in (
        ("queue", "messages"),
        ("queue", "messages", "--ack"),
        ("queue", "dead"),
        ("queue", "depth"),
    ):
        assert said(call(*arguments)) == []
    assert not Path(state_directory()).exists()
