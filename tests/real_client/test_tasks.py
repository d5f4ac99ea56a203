"""The client's task list: seen from outside while it works, and after it was killed."""

import os
import shlex
import signal
import threading

import pytest
from helpers.program import PROGRAM

from real_client.api import Call, Reply, bash, marked
from real_client.client import finish

pytestmark = pytest.mark.real_client


def create(subject):
    return Call("TaskCreate", {"subject": subject, "description": "d", "activeForm": "f"})


def update(task_id, status):
    return Call("TaskUpdate", {"taskId": task_id, "status": status})


def shown(record):
    return f"{record.tasks_completed}/{record.tasks_total}", record.current_task


def test_the_plan_follows_the_clients_task_list(installed, api, states):
    """Before each request the state holds what the calls before it did, of both agents."""
    work = {
        "description": "a part", "prompt": marked("count", "scout"),
        "subagent_type": "general-purpose", "run_in_background": False,
    }  # fmt: skip
    api.play(
        Reply(20_000, calls=(create("read"), create("read"))),
        Reply(21_000, calls=(update("1", "in_progress"),)),
        Reply(22_000, calls=(Call("Agent", work),)),
        Reply(23_000, calls=(update("1", "completed"), update("2", "deleted"))),
        Reply(24_000, calls=(Call("TaskList", {}),)),
        Reply(25_000, "Done."),
    )
    api.play(
        Reply(8_000, calls=(create("count"), create("add up"))),
        Reply(9_000, calls=(update("3", "in_progress"),)),
        Reply(10_000, calls=(update("3", "completed"),)),
        Reply(11_000, "Counted."),
        conversation="scout",
    )
    session_id = installed.run(marked("do the work")).session_id
    plans = [shown(turn.seen[session_id]) for turn in api.turns()[1:]]
    assert plans == [
        ("0/2", "[[main]] do the work"), ("0/2", "read"), ("0/3", "read"), ("1/2", None),
        ("2/3", None),
    ]  # fmt: skip
    counts = []
    for turn in api.turns("scout")[1:]:
        (scout,) = [one for name, one in turn.seen.items() if name != session_id]
        counts.append(shown(scout))
    assert counts == [("0/2", None), ("0/2", "count"), ("1/2", None)]
    record = states.all()[session_id]
    assert [(task["name"], task["status"]) for task in record.tasks] == [
        ("read", "done"), ("count", "done"), ("add up", "pending"),
    ]  # fmt: skip


def test_a_killed_session_leaves_its_tasks_to_a_successor(installed, api, fleet):
    """Nothing but the hooks ran; the fleet rebuilds what is done, begun and left."""
    gate = threading.Event()
    api.play(
        Reply(20_000, calls=(create("read"), create("write"), create("test"))),
        Reply(21_000, calls=(update("1", "completed"), update("2", "in_progress"))),
        Reply(22_000, "Too late.", gate=gate),
    )
    process = installed.start(marked("do the work"))
    try:
        api.wait_for_turns(3)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        gate.set()
        finish(process)
    events = [event for _ in range(3) for event in fleet.poll()]
    (ready,) = [event for event in events if event.name == "handoff_ready"]
    handoff = ready.handoff
    assert (handoff.completed, handoff.interrupted, handoff.remaining) == (
        ("read",), ("write",), ("test",),
    )  # fmt: skip


def test_an_agent_keeps_tasks_by_its_shell(installed, api, states):
    """The client names the session to its commands; they and its hooks change one state."""
    program = f"{shlex.quote(PROGRAM)} %s --state-dir {shlex.quote(str(states.directory))}"
    api.play(
        bash(20_000, program % "task add read write"),
        bash(21_000, program % "task start read"),
        bash(22_000, program % "task handoff --notes 'half done'"),
        Reply(23_000, "Done."),
    )
    session_id = installed.run(marked("do the work")).session_id
    assert [shown(turn.seen[session_id]) for turn in api.turns()[1:]] == [
        ("0/2", "[[main]] do the work"), ("0/2", "read"), ("0/2", "read"),
    ]  # fmt: skip
    handoff = states.only().handoff
    assert (handoff["interrupted"], handoff["remaining"]) == (["read"], ["write"])
    assert handoff["notes"] == "half done"
