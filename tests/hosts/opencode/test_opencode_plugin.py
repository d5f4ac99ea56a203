"""The plugin of opencode, which asks a real resident, in a process that stands for the client."""

import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.opencode_plugin import (
    SESSION,
    Plugin,
    prompt,
    recorded_messages,
    reply,
    texts_in,
)
from helpers.opencode_session import plant, session_id
from helpers.resident_session import until

from ultramon.hosts.calls.hosted_agent import CUT_TURN, IN_TOOL, SILENT_CALLS, WAITING

CONNECTED = "03"
"""In ``/proc/net/unix``."""


def said(text):
    return {"message": prompt("msg_1"), "parts": [{"type": "text", "text": text}]}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    made = Plugin(tmp_path, monkeypatch)
    yield made
    made.end()


def test_a_reminder_is_in_the_request_behind_the_reply_that_it_is_about(plugin):
    """It stays there in the next ones, at its place, and no second one of its level is added."""
    plugin.start().begin()
    plugin.limits()
    asked = prompt("msg_1")
    assert texts_in(plugin.request(asked)[0]) == []
    messages, _ = plugin.request(asked, reply("msg_2", 70_000))
    (text,) = texts_in(messages)
    assert "70,000 of 92,000 tokens (76 %)" in text
    assert [one["info"]["role"] for one in messages] == ["user", "assistant", "user"]
    again, _ = plugin.request(asked, reply("msg_2", 70_000), reply("msg_3", 71_000))
    assert [one["info"]["id"] for one in again] == [
        "msg_1", "msg_2", messages[-1]["info"]["id"], "msg_3",
    ]  # fmt: skip
    assert texts_in(again) == [text]
    # After a compaction the message that it followed is gone.
    summary = reply("msg_4", 93_000, summary=True)
    assert texts_in(plugin.request(summary, prompt("msg_5"))[0]) != [text]
    (record,) = plugin.settled()
    assert (record.epoch, record.context_window, record.context_limit) == (2, 100_000, 92_000)
    assert plugin.failures() == []


def test_a_reminder_comes_again_after_so_many_silent_replies(plugin):
    """As in the other hosts."""
    plugin.start().begin()
    plugin.limits()
    asked = prompt("msg_1")
    plugin.request(asked)
    replies = [reply(f"msg_2{n}", 70_000 + n) for n in range(SILENT_CALLS + 2)]
    seen = []
    for number in range(len(replies)):
        seen.append(len(texts_in(plugin.request(asked, *replies[: number + 1])[0])))
    assert seen == [1] * (SILENT_CALLS + 1) + [2]
    assert plugin.failures() == []


@pytest.mark.parametrize("kills", [True, False])
def test_another_process_reads_its_reminder_again(plugin, kills):
    """The client does not store it; the process that has read it does not read it twice."""
    plugin.start().begin()
    plugin.limits()
    messages = prompt("msg_1"), reply("msg_2", 70_000)
    plugin.request(messages[0])
    assert len(texts_in(plugin.request(*messages)[0])) == 1
    plugin.settled()
    plugin.close(kills=kills)
    until(lambda: kills or not plugin.records()[0].active, "the session has not ended")
    plugin.start()
    for expected in (1, 1):
        plugin.call("chat.message", {"sessionID": SESSION}, said("continue"))
        plugin.limits()
        assert len(texts_in(plugin.request(*messages, prompt("msg_3"))[0])) == expected
    (record,) = plugin.settled()
    assert (record.active, record.epoch) == (True, 1)
    assert plugin.failures() == []


@pytest.mark.parametrize("name", ["plain_then_continue", "killed_then_continued"])
def test_a_recorded_session_is_read_as_its_client_showed_it(plugin, tmp_path, name):
    """Each reply is known when the next request is made, the last one when the turn is over."""
    path = tmp_path / "data" / "opencode" / "opencode.db"
    plant(path, name)
    recorded = session_id(path)
    messages = recorded_messages(path, recorded)
    plugin.start().begin(recorded)
    for number, info in enumerate(messages):
        if info["role"] == "assistant":
            plugin.request(*messages[:number])
            plugin.limits(recorded, limit={"context": 200_000, "output": 8_000})
            plugin.event("message.updated", sessionID=recorded, info=info)
    plugin.event("session.idle", sessionID=recorded)
    until(lambda: plugin.records()[0].phase == WAITING, "the turn is not over")
    (record,) = plugin.settled()
    assert record.estimated_tokens == 41_000
    assert record.context_limit == 192_000
    assert plugin.failures() == []


def test_subagents_are_agents_of_their_own(plugin, tmp_path):
    """By the sessions that they are; two at once are not confused."""
    plant(tmp_path / "data" / "opencode" / "opencode.db", "compaction")
    plugin.start().begin()
    for name, title in (("ses_a", "first (@general subagent)"), ("ses_b", "second")):
        info = {"id": name, "parentID": SESSION, "title": title}
        plugin.event("session.created", sessionID=name, info=info)
        plugin.limits(name)
    plugin.request(prompt("msg_1", "ses_a"), reply("msg_2", 70_000, "ses_a"))
    told = plugin.request(prompt("msg_3", "ses_b"), reply("msg_4", 20_000, "ses_b"))
    assert texts_in(told[0]) == []
    state = {"status": "completed", "metadata": {"sessionId": "ses_a"},
             "output": "<task><task_result>\ndone\n</task_result></task>"}  # fmt: skip
    part = {"type": "tool", "tool": "task", "callID": "call_1", "sessionID": SESSION}
    plugin.event("message.part.updated", part={**part, "state": state})
    state = {"status": "error", "metadata": {"sessionId": "ses_b"},
             "error": "Subagent failed: maximum context length is 100000 tokens"}  # fmt: skip
    plugin.event("message.part.updated", part={**part, "callID": "call_2", "state": state})
    messages, _ = plugin.request(prompt("msg_5"), reply("msg_6", 21_000))
    main, first, second = plugin.settled()
    assert {first.parent_id, second.parent_id} == {main.agent_id}
    assert (first.agent_id, first.estimated_tokens) == (f"{SESSION}.ses_a", 70_000)
    assert first.label.endswith("first")
    assert (second.estimated_tokens, second.outcome) == (20_000, "failed")
    assert first.outcome == "completed"
    # The launcher reads in its next request why one result is empty.
    *_, text = texts_in(messages)
    assert 'Subagent ses_b ("opencode: second") failed: Prompt is too long' in text
    assert plugin.failures() == []


def test_what_happens_in_a_session_is_its_phase(plugin):
    """A tool that runs, a question, the end of a turn, and that of the client."""
    plugin.start().begin()
    plugin.call("chat.message", {"sessionID": SESSION}, said('"do it"'))
    plugin.request(prompt("msg_1"))
    until(lambda: plugin.records()[0].current_task == "do it", "no prompt")

    def phase():
        record = plugin.records()[0]
        return record.phase, record.extra["opencode"].get("waitsFor")

    plugin.call("tool.execute.before", {"tool": "bash", "sessionID": SESSION, "callID": "c1"})
    until(lambda: phase()[0] == IN_TOOL, "no tool runs")
    plugin.event("permission.asked", sessionID=SESSION)
    until(lambda: phase() == (WAITING, "permission"), "no permission is asked for")
    todos = [{"content": "one", "status": "completed"}, {"content": "two", "status": "pending"}]
    tool = {"tool": "todowrite", "sessionID": SESSION, "callID": "c2", "args": {"todos": todos}}
    plugin.call("tool.execute.after", tool)
    until(lambda: plugin.records()[0].tasks, "no tasks")
    plugin.event("session.idle", sessionID=SESSION)
    until(lambda: phase() == (WAITING, None), "the turn is not over")
    plugin.close()
    until(lambda: not plugin.records()[0].active, "the session has not ended")
    (record,) = plugin.records()
    assert (record.outcome, [task["name"] for task in record.tasks]) == (
        "completed",
        ["one", "two"],
    )
    assert plugin.failures() == []


def test_a_client_that_ends_in_a_turn_has_cut_it(plugin):
    """It says so itself: what the end of a turn stores may come later."""
    plugin.start().begin()
    plugin.request(prompt("msg_1"))
    plugin.close()
    until(lambda: not plugin.records()[0].active, "the session has not ended")
    (record,) = plugin.records()
    assert (record.outcome, record.exit) == ("cancelled", {"reason": CUT_TURN})


def test_a_session_that_fails_says_why(plugin):
    """What a later reply has mended is no failure."""
    plugin.start().begin()
    error = {"name": "ContextOverflowError"}
    plugin.event("session.error", sessionID=SESSION, error=error)
    plugin.event("message.updated", sessionID=SESSION, info=reply("msg_2", 9_000))
    plugin.event("session.idle", sessionID=SESSION)
    until(lambda: plugin.records()[0].phase == WAITING, "the turn is not over")
    plugin.event("session.error", sessionID=SESSION, error=error)
    plugin.event("session.idle", sessionID=SESSION)
    plugin.close()
    until(lambda: not plugin.records()[0].active, "the session has not ended")
    (record,) = plugin.records()
    assert (record.outcome, record.exit["error"]) == ("failed", "Prompt is too long")


def test_a_resumed_session_is_met_with_its_first_prompt(plugin):
    """The client does not announce it."""
    plugin.start()
    plugin.call("chat.message", {"sessionID": SESSION}, said("go"))
    until(plugin.records, "no session")
    (record,) = plugin.records()
    assert (record.agent_id, record.active) == (SESSION, True)


def test_without_a_resident_the_client_waits_for_nothing(tmp_path, monkeypatch):
    """A process does what is to be done; what it says comes one request later."""
    plugin = Plugin(tmp_path, monkeypatch, resident=False)
    gate = plugin.hold(tmp_path / "gate")
    plugin.start()
    plugin.event("session.created", sessionID=SESSION, info={"id": SESSION})
    plugin.limits()
    asked = [prompt("msg_1"), reply("msg_2", 70_000)]
    messages, _ = plugin.request(*asked)
    # No process has begun yet, and the request is on its way.
    assert texts_in(messages) == []
    assert plugin.records() == []
    os.write(gate, b"\n" * 1_000)
    until(lambda: any(one.threshold_status == "critical" for one in plugin.records()), "no state")
    asked.append(reply("msg_3", 71_000))
    until(lambda: texts_in(plugin.request(*asked)[0]), "nothing was said")
    plugin.end()
    os.close(gate)
    assert plugin.place.running() is None


def test_a_resident_that_hangs_costs_one_call(plugin, tmp_path):
    """It is left alone then for a while: no further call comes to it."""
    path = plugin.place.socket
    gate = plugin.hold(tmp_path / "gate")  # the plugin's processes would call it too
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen()
        listening.setblocking(False)
        plugin.start()
        plugin.event("session.created", sessionID=SESSION, info={"id": SESSION})
        for _ in range(10):
            plugin.request(prompt("msg_1"), reply("msg_2", 9_000))
        calls = 0
        with suppress(BlockingIOError):
            while True:
                listening.accept()[0].close()
                calls += 1
    assert calls == 1
    plugin.close(kills=True)
    os.close(gate)
    os.unlink(path)


def connections(place):
    """How many connections to the socket of a resident are open."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    own = os.fsdecode(place.socket)
    return sum(words[-1] == own and words[5] == CONNECTED for words in lines)


def test_one_connection_is_kept_for_all_calls(plugin):
    """While nothing is asked it counts as no call that is under way."""
    plugin.start().begin()
    plugin.limits()
    for number in range(5):
        plugin.request(prompt("msg_1"), reply(f"msg_2{number}", 10_000 + number))
        plugin.call("tool.execute.before", {"tool": "x", "sessionID": SESSION, "callID": "c"})
    (record,) = plugin.settled()
    assert record.estimated_tokens == 10_004
    until(lambda: connections(plugin.place) == 1, "there is another one")
    plugin.close(kills=True)
    until(lambda: connections(plugin.place) == 0, "a connection is left")
    assert plugin.failures() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_resident_that_ended_while_nothing_was_asked_is_not_missed(plugin, number):
    """The kept connection is lost with it; the next call has its own process, as without it."""
    plugin.start().begin()
    plugin.limits()
    asked = prompt("msg_1")
    plugin.request(asked)
    plugin.settled()
    ended = plugin.place.running()
    os.kill(ended["pid"], number)
    until(lambda: plugin.place.running() != ended, "it does not end")
    plugin.request(asked, reply("msg_2", 70_000))
    until(lambda: plugin.records()[0].estimated_tokens == 70_000, "it was not stored")
    until(lambda: texts_in(plugin.request(asked, reply("msg_2", 70_000))[0]), "no reminder")
    plugin.event("session.created", sessionID="ses_2", info={"id": "ses_2"})
    until(plugin.place.running, "no other resident was started")
    plugin.request(asked, reply("msg_2", 70_000), reply("msg_3", 71_000))
    assert plugin.settled()[0].estimated_tokens == 71_000
    assert plugin.failures() == []


@pytest.mark.parametrize(
    "variables",
    [{"ULTRAMON_DISABLED": "1"}, {"ULTRAMON_RELAY": "job"}],
    ids=lambda one: next(iter(one)),
)
def test_a_plugin_that_is_not_asked_for_has_no_hooks(plugin, variables):
    """Where ultramon is switched off, and in a relay, which brings a plugin of its own."""
    plugin.start(**variables)
    assert plugin.call("config")["hooks"] == 0
