"""The resident answers as a hook process would; whatever happens to it, the process continues."""

import json
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest
from helpers import ROOT
from helpers.hooked_session import HookedSession, said, tokens_at
from helpers.notified_session import notify
from helpers.resident_session import opened, until

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.local.state_files import StateDirectory
from ultramon.hosts.claude_code import statusline
from ultramon.hosts.claude_code.host import CLAUDE_CODE
from ultramon.hosts.resident.exchange import Request
from ultramon.hosts.resident.forwarder import socket_path
from ultramon.hosts.resident.place import Place
from ultramon.hosts.resident.store import OvertakenError, ResidentStore
from ultramon.hosts.resident.turns import (
    MAX_AGENTS,
    MAX_LATE_CALLS,
    Knowledge,
    Turn,
    Turns,
)


@pytest.fixture
def session(tmp_path):
    with opened(tmp_path) as session:
        yield session


def loaded(session, event, **fields):
    """The modules that one real call loads, and what it printed."""
    python, *rest = session.command()
    done = subprocess.run(
        [python, "-X", "importtime", *rest],
        input=json.dumps(session.payload(event, **fields)).encode(),
        env=session.environ,
        capture_output=True,
        check=True,
    )
    lines = [line for line in done.stderr.decode().splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}, done.stdout


def test_the_first_session_starts_it_and_warnings_are_the_same(session, tmp_path):
    """Each rung is warned of once, at the same calls as by processes."""
    session.begin()
    (tmp_path / "alone").mkdir()
    alone = HookedSession(tmp_path / "alone")
    alone.freeze()
    alone.call("SessionStart", source="startup")
    fills = (90, 60, 34, 30, 24, 10)
    assert said(session, *fills) == said(alone, *fills) == [None, None, 66, None, 76, None]
    assert session.facts()["calls"] == len(fills)
    assert session.facts()["refused"] == 0
    assert session.failures() == alone.failures() == []


def test_the_state_is_the_one_that_processes_leave(session, tmp_path):
    """Same figures, same phase, same events; only times and processes differ."""
    (tmp_path / "alone").mkdir()
    alone = HookedSession(tmp_path / "alone")
    alone.freeze()
    session.begin()
    alone.call("SessionStart", source="startup")
    for one in (session, alone):
        one.call("UserPromptSubmit", prompt="do it")
        for remaining in (80, 70, 33, 32):
            one.tool(tokens_at(remaining), event="PreToolUse")
            one.tool(tokens_at(remaining))
        one.call("Stop")
    fields = ("estimated_tokens", "context_limit", "threshold_status", "phase", "active", "epoch",
              "generation", "current_task", "announced", "seq")  # fmt: skip
    of_both = [[getattr(one.record(), name) for name in fields] for one in (session, alone)]
    assert of_both[0] == of_both[1]
    kinds = [[event["type"] for event in one.events()] for one in (session, alone)]
    assert kinds[0] == kinds[1]


def test_an_answered_call_loads_next_to_nothing(session):
    """The forwarder alone: no `os`, no reader of JSON, nothing of what handles calls."""
    session.begin()
    session.tool(tokens_at(90))
    # The clock is for the alarm that ends a payload which does not come.
    names, _ = loaded(session, "PostToolUse", tool_name="Bash", tool_use_id="toolu_0")
    ours = {name for name in names if name.startswith("ultramon")}
    assert ours == {
        "ultramon", "ultramon.hosts", "ultramon.hosts.resident",
        "ultramon.hosts.resident.forwarder",
    }  # fmt: skip
    assert not names & {"os", "json", "socket", "select", "signal", "enum", "stat", "struct"}
    assert "_socket" in names


def test_far_from_a_rung_a_call_is_answered_before_its_reading(session):
    """Near one, at the first call and after a change from outside it is not."""
    session.begin()
    at_once = [session.at_once()]
    for remaining in (90, 89, 88, 34, 33):
        session.tool(tokens_at(remaining))
        at_once.append(session.at_once())
    assert at_once == [0, 0, 1, 2, 2, 2]
    session.settle()
    assert session.record().estimated_tokens == tokens_at(33)


def test_a_state_that_another_process_wrote_is_read_first(session):
    """What is remembered counts only while the file is the one that was stored."""
    session.begin()
    session.tool(tokens_at(90))
    session.tool(tokens_at(89))
    before = session.at_once()
    session.call("UserPromptSubmit", prompt="by itself", env={"ULTRAMON_NO_RESIDENT": "1"})
    session.tool(tokens_at(88))
    assert session.at_once() == before
    session.tool(tokens_at(87))
    assert session.at_once() == before + 1


def test_calls_are_answered_while_those_before_them_are_stored(session):
    """And stored in their order: another process holds the agent meanwhile."""
    session.begin()
    session.tool(tokens_at(90))
    session.settle()
    names = [f"toolu_{number}" for number in range(3)]
    with StateDirectory(str(session.state)).locked("session", 1.0):
        for number, name in enumerate(names):
            session.reply(tokens_at(90) + number, name)
            said = session.ask("PostToolUse", tool_name="Bash", tool_use_id=name)
            assert said.connection.recv(2) == b"+N"
            said.close()
        assert session.place.ask()["atWork"] > 1
    record = session.record()
    assert record.extra["claudeCode"]["endedEarly"] == names
    assert record.estimated_tokens == tokens_at(90) + 2
    assert session.failures() == []


def test_that_a_tool_begins_is_never_waited_for(session):
    """Nothing is said there, near a rung and above one either."""
    session.begin()
    for remaining in (34, 30):
        session.tool(tokens_at(remaining))
        session.tool(tokens_at(remaining))  # which reads no reminder any more
        before = session.at_once()
        session.tool(tokens_at(remaining), event="PreToolUse")
        assert session.at_once() == before + 1


def test_work_is_put_off_in_order_and_done_before_the_next_turn():
    """By whichever call comes next, and only where something is known of the agent."""
    turn, done = Turn(), []
    known = Knowledge(None, None, None)

    def put(name):
        return turn.put_late(lambda knowledge: knowledge is known, lambda: done.append(name))

    assert not put("nothing is known")
    turn.knowledge = known
    assert [put(number) for number in range(MAX_LATE_CALLS + 1)] == [True] * MAX_LATE_CALLS + [
        False
    ]
    assert done == []
    assert turn.begin() is known
    assert done == [*range(MAX_LATE_CALLS)]
    assert not put("a call has its turn")


def test_a_large_result_is_waited_for(session):
    """The window may be full of it, whatever the last reply said."""
    session.begin()
    session.tool(tokens_at(90))
    session.tool(tokens_at(89))
    before = session.at_once()
    session.reply(tokens_at(88), "toolu_x")
    session.write(b'{"type":"user","message":{"content":"' + b"x" * 400_000 + b'"}}\n')
    session.call("PostToolUse", tool_name="Bash", tool_use_id="toolu_x")
    assert session.at_once() == before


@pytest.mark.parametrize("event", ["SessionStart", "SessionEnd", "PreCompact", "SubagentStop"])
def test_what_may_not_happen_twice_is_left_to_its_own_process(session, event):
    """The resident has not begun with it when it refuses."""
    session.begin()
    session.tool(tokens_at(80))
    before = session.record().seq
    asked = session.ask(event, agent_id="a1", agent_type="general-purpose")
    assert asked.words() == b"+R"
    asked.close()
    assert session.record().seq == before


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "PreToolUse", "tool_name": "Bash", "tool_use_id": "toolu_x"},
        {"event": "PostToolUse", "tool_name": "Bash", "tool_use_id": "toolu_x"},
        {"event": "PostToolUseFailure", "tool_name": "Bash", "tool_use_id": "toolu_x"},
        {"event": "UserPromptSubmit", "prompt": "do it"},
        {"event": "Stop", "last_assistant_message": "Done."},
        {"event": "StopFailure", "error": "overloaded"},
        {"event": "PermissionRequest"},
    ],
    ids=lambda fields: fields["event"],
)
def test_what_it_answers_may_happen_twice(session, fields):
    """A call that continues in its own process after the resident took it changes nothing more."""
    for remaining in (80, 70):
        session.tool(tokens_at(remaining))
    session.reply(tokens_at(33), "toolu_x", text="Done.")
    states = []
    for _ in range(2):
        session.call(**fields)
        record = session.record()
        changing = ("warned", "callEndedAt", "runsNothingSince")
        memory = {name: one for name, one in session.memory().items() if name not in changing}
        names = ("phase", "epoch", "generation", "active", "outcome", "estimated_tokens",
                 "current_task", "announced")  # fmt: skip
        states.append([*(getattr(record, name) for name in names), memory])
    assert states[0] == states[1]
    assert len(session.events("context_threshold_reached")) == 1


def test_an_older_call_does_not_replace_a_newer_state(session):
    """As of a resident that was stopped within a call, and continues."""
    session.tool(tokens_at(80))
    call = Request(
        [b"0.1.0", b"claude-code hook", str(session.installed).encode(), b"1", b"", b"{}"]
    )

    def store(now):
        made = ResidentStore(
            CLAUDE_CODE, str(session.state), call, os.getpid(), event="Stop", now=now
        )
        made.own_id = session.session_id
        return made

    changed = []
    with pytest.raises(OvertakenError):
        store(time.time() - 60).update(session.session_id, changed.append)
    assert store(time.time()).update(session.session_id, changed.append) is changed[0]
    session.call("SessionEnd", reason="other")
    late = store(time.time() + 1)
    late.is_late = True
    with pytest.raises(OvertakenError):
        late.update(session.session_id, changed.append)
    assert len(changed) == 1


def test_a_call_that_may_end_its_agent_is_left_to_its_own_process(session):
    """The checkpoint takes longer than a forwarder waits; far from a rung no agent is ended."""
    session.freeze(resident=True, installed_at=time.time(), enforce="critical")
    session.begin()
    assert said(session, 80, 20) == [None, 80]
    asked = session.ask("PostToolUse", tool_name="Bash")
    assert asked.words() == b"+R"
    asked.close()


def test_a_subagent_that_ends_empty_is_reported(session):
    """Its launcher's call is handled by a process, since it changes two agents."""
    session.begin()
    session.tool(tokens_at(80))
    session.call("SubagentStart", agent="a1")
    session.reply(tokens_at(90), "toolu_x", agent="a1")
    session.call("SubagentStop", agent="a1")
    response = {"status": "completed", "agentId": "a1", "content": []}
    text = session.call("PostToolUse", tool_name="Agent", tool_response=response).text
    assert "it returned no text" in text


def test_a_notice_that_did_not_arrive_comes_with_the_next_call(session):
    """At once, without waiting for the end of its lease; one that did arrive comes once."""
    session.begin()
    session.tool(tokens_at(90))
    with closing(LocalBackend(str(session.state))) as backend:
        notify(backend)
    lost = session.ask("PostToolUse", tool_name="Bash")
    assert b"scout-1" in lost.words()
    lost.close()
    until(lambda: "scout-1" in session.tool(tokens_at(90)).text, "the notice does not come again")
    assert session.tool(tokens_at(90)).text == ""


def test_a_warning_that_did_not_arrive_comes_with_the_next_call(session):
    """The process that was to print it has ended; one that was printed is not repeated."""
    session.begin()
    session.tool(tokens_at(90))
    session.reply(tokens_at(30), "toolu_x")
    code = (
        "import os, sys; sys.path[:0] = sys.argv[1:3];"
        "from helpers.resident_session import ResidentSession; import pathlib;"
        "s = ResidentSession(pathlib.Path(sys.argv[3]), sockets=sys.argv[4]);"
        "w = s.ask('PostToolUse', tool_name='Bash', tool_use_id='toolu_x').words();"
        "assert b'70 %' in w, w; os._exit(0)"
    )
    subprocess.run(
        [sys.executable, "-c", code, "tests", ".", str(session.path),
         session.environ["XDG_RUNTIME_DIR"]],
        check=True,
        env=session.environ | {"PYTHONPATH": ""},
        cwd=str(ROOT),
    )  # fmt: skip
    assert "70 %" in session.call("PostToolUse", tool_name="Bash", tool_use_id="toolu_x").text
    assert session.call("PostToolUse", tool_name="Bash", tool_use_id="toolu_x").text == ""


def test_a_call_whose_forwarder_gave_up_is_not_handled(session):
    """Its own process does that; here it would happen twice."""
    pid = session.begin()
    session.tool(tokens_at(90))
    before = session.record().seq
    os.kill(pid, 19)
    session.ask("UserPromptSubmit", prompt="twice?").close()
    os.kill(pid, 18)
    until(lambda: session.facts()["calls"] >= 2, "the request was not read")
    assert session.record().seq == before


def test_the_status_line_is_answered_too(session):
    """The same line, by the same forwarder."""
    session.begin()
    session.tool(tokens_at(70))
    now = int(time.time())
    limits = {"five_hour": {"used_percentage": 62, "resets_at": now + 7_200},
              "seven_day": {"used_percentage": 41, "resets_at": now + 400_000}}  # fmt: skip
    payload = session.payload("x") | {"model": {"id": "claude-sonnet-4-5"}, "rate_limits": limits}
    before = session.facts()["calls"]
    shown = [
        subprocess.run(
            [sys.executable, "-I", "-S", statusline.__file__, str(session.installed), *more],
            input=json.dumps(payload).encode(),
            env=session.environ | {"NO_COLOR": "1", "COLUMNS": "50"},
            capture_output=True,
            check=True,
        ).stdout.decode()
        for more in (["resident"], [])
    ]
    assert shown[0] == shown[1]
    assert "30% 60k/200k · 5h 62% →" in shown[0]
    assert "week" not in shown[0]  # no room
    assert session.facts()["calls"] == before + 1
    session.tool(tokens_at(69))
    at_once = session.at_once()
    session.tool(tokens_at(68))
    assert session.at_once() == at_once + 1


def test_a_socket_has_a_short_path_whatever_the_directory_is_called():
    """The system takes no more than 107 bytes."""
    long = b"/" + b"state" * 100
    path = socket_path({b"XDG_RUNTIME_DIR": b"/run/user/1000"}, long)
    assert path.startswith(b"/run/user/1000/ultramon-")
    assert len(path) < 60
    assert socket_path({}, long).startswith(b"/tmp/ultramon-%d/" % os.geteuid())
    assert socket_path({b"XDG_RUNTIME_DIR": long}, b"/s") == socket_path({}, b"/s/")
    assert socket_path({}, b"/s1") != socket_path({}, b"/s2")


def test_it_remembers_a_bounded_number_of_agents():
    """Those that called last."""

    class Event:
        subagent_id = None

        def __init__(self, session_id):
            self.session_id = session_id

    turns = Turns()
    for number in range(MAX_AGENTS + 10):
        with turns.taken(Event(f"s{number}"), None) as turn:
            turn.knowledge = number
    with turns.taken(Event(f"s{MAX_AGENTS}"), None) as turn:
        assert turn.knowledge == MAX_AGENTS
    with turns.taken(Event("s0"), None) as turn:
        assert turn.knowledge is None


def test_a_session_that_is_switched_off_is_not_seen(session):
    """The switch for everything, and the one for the resident alone."""
    session.begin()
    before = session.facts()["calls"]
    assert session.tool(tokens_at(30), env={"ULTRAMON_DISABLED": "1"}).text == ""
    assert "70 %" in session.tool(tokens_at(30), env={"ULTRAMON_NO_RESIDENT": "1"}).text
    assert session.facts()["calls"] == before


def test_nothing_is_asked_where_none_was_installed(tmp_path):
    """Neither a socket is looked for, nor a process started."""
    session = HookedSession(tmp_path, XDG_RUNTIME_DIR=str(tmp_path))
    session.freeze()
    names, _ = loaded(session, "SessionStart", source="startup")
    assert not {name for name in names if "resident" in name or name == "_socket"}
    assert Place(str(session.state), session.environ).running() is None


def test_its_environment_is_not_that_of_one_session(tmp_path):
    """It serves the others as well, so a variable of the first would count for all of them."""
    with opened(tmp_path) as session:
        session.environ["ULTRAMON_AUDIENCE"] = "none"
        pid = session.begin()
        with open(f"/proc/{pid}/environ", "rb") as file:
            names = {one.partition(b"=")[0] for one in file.read().split(b"\0") if one}
        assert names <= {b"HOME", b"PATH", b"LANG", b"XDG_RUNTIME_DIR"}
        assert said(session, 34) == [None]
        other = session.beside("other")
        assert said(other, 34) == [66]


def test_the_client_does_not_wait_for_it(tmp_path):
    """It holds none of the hook's pipes, and is in no group that the client would kill."""
    with opened(tmp_path) as session:
        began = time.monotonic()
        process = session.start(session.payload("SessionStart", source="startup"))
        assert process.communicate(timeout=30) == (b"", b"")
        assert time.monotonic() - began < 30
        pid = session.running()["pid"]
        assert os.getsid(pid) == pid
        assert {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}


def test_ten_sessions_at_once_are_warned_each_once(tmp_path):
    """Over one resident, with their calls at the same time."""
    with opened(tmp_path) as session:
        session.begin()
        others = [session.beside(f"s{number}") for number in range(10)]
        texts = {one.session_id: [] for one in others}
        for remaining in (90, 34, 24, 20):
            running = []
            for one in others:
                one.reply(tokens_at(remaining), f"toolu_{remaining}")
                payload = one.payload(
                    "PostToolUse", tool_name="Bash", tool_use_id=f"toolu_{remaining}"
                )
                running.append((one, one.start(payload)))
            for one, process in running:
                out, err = process.communicate(timeout=60)
                assert (process.returncode, err) == (0, b"")
                texts[one.session_id].append(out.count(b"Context window:"))
        assert set(map(tuple, texts.values())) == {(0, 1, 1, 0)}
        # A journal that ten want at once may be busy; then their events wait, as they always do.
        assert [one for one in session.failures() if "events wait" not in one] == []
