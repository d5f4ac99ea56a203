"""`ultramon task`: an agent with a shell keeps its own plan."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from helpers.hooked_session import SESSION, HookedSession
from helpers.program import PROGRAM, run, run_process
from helpers.task_calls import create, listed, shown, update

from ultramon import Fleet, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.exit_codes import ExitCode
from ultramon.server.posted_agents import PostedAgents


@pytest.fixture
def session(tmp_path):
    """A running session of a coding agent."""
    session = HookedSession(tmp_path)
    session.call("SessionStart", source="startup", model="claude-sonnet-4-5")
    return session


@pytest.fixture
def shell(session):
    """What the agent runs in its shell: the client names the session there."""

    def call(*words, code=ExitCode.OK, run=run, **environ):
        environ = {"CLAUDE_CODE_SESSION_ID": SESSION} | environ
        done = run(*words, ULTRAMON_STATE_DIR=str(session.state), **environ)
        assert done.returncode == code, done.stderr
        return done

    return call


@pytest.fixture
def backend(tmp_path):
    with closing(LocalBackend(str(tmp_path / "hooked"))) as backend:
        yield backend


def test_an_agent_works_through_a_plan_of_its_own(session, shell):
    """Added, begun, done with a result; the state follows at once."""
    assert "2 tasks added; 0 of 2 done" in shell("task", "add", "read", " write\nit ").stderr
    assert "1 task added; 0 of 3 done" in shell("task", "add", "read", "test", "test").stderr
    shell("task", "start", "read")
    assert shown(session.record()) == ("0/3", "read")
    assert "read is done; 1 of 3 done" in shell("task", "done", "--result", "notes.md").stderr
    assert shown(session.record()) == ("1/3", None)
    shell("task", "start", "sweep")
    shell("task", "done", "test")
    done = shell("task", "list")
    assert done.stdout == "[x] read  (notes.md)\n[ ] write it\n[x] test\n[>] sweep\n"
    assert done.stderr == "2 of 4 done\n"
    assert session.record().tasks[0] == {"name": "read", "status": "done", "result": "notes.md"}


def test_steps_inside_a_task_are_stored_for_an_agent_that_continues_it(session, shell):
    """They are in the journal at once, in the words of JSON, and end when the task is another."""
    shell("task", "start", "read")
    done = shell("task", "step", "parsed", "--result", '{"rows": [1, "é"]}')
    assert (done.stdout, done.stderr) == ("", "parsed of read is stored\n")
    shell("task", "step", "look")
    (first, second) = session.events("step_completed")
    assert (first["item"], first["step"], first["result"]) == (
        "read", "parsed", {"rows": [1, "é"]}
    )  # fmt: skip
    assert second["result"] is None
    listed = shell("task", "steps")
    assert listed.stdout == 'parsed  {"rows":[1,"\\u00e9"]}\nlook\n'
    assert listed.stderr == "2 steps of read\n"
    shell("task", "start", "write")
    assert shell("task", "steps").stderr == "0 steps of write\n"
    as_json = json.loads(shell("task", "steps", "read", "--json").stdout)
    assert as_json == {
        "agentId": SESSION,
        "item": "read",
        "steps": {"parsed": {"rows": [1, "é"]}, "look": None},
    }
    again = json.loads(shell("task", "step", "b\u202ec", "--result", "1", "--json").stdout)
    assert again["steps"] == {"b\u202ec": 1}
    assert "\u202e" not in shell("task", "steps").stdout


def test_what_is_no_step_is_refused_and_nothing_is_stored(session, shell):
    done = shell("task", "step", "parsed", code=ExitCode.FAILURE)
    assert "no item is in work" in done.stderr
    assert "no item is in work" in shell("task", "steps", code=ExitCode.FAILURE).stderr
    shell("task", "start", "read")
    large = json.dumps("x" * 70_000), "at most 65,536 bytes"
    for result, words in (("done", "not JSON"), ("NaN", "not JSON"), large):
        done = shell("task", "step", "parsed", "--result", result, code=ExitCode.USAGE)
        assert words in done.stderr
    assert "1 to 200 characters" in shell("task", "step", "", code=ExitCode.USAGE).stderr
    shell("task", "step", "parsed", "--result", json.dumps("x" * 60_000))
    done = shell("task", "step", "more", "--result", json.dumps("x" * 6_000), code=ExitCode.USAGE)
    assert "at most 65,536 bytes" in done.stderr
    assert [event["step"] for event in session.events("step_completed")] == ["parsed"]


def test_steps_of_an_assigned_item_are_found_by_what_a_task_names(session, shell, backend):
    """A task has words of its own for its item; what earlier agents stored comes with it."""
    fleet = Fleet("claude-code", backend=backend)
    event = fleet._deliveries.assignments.event(
        SESSION, ["read.py", "write.py"], 0, source="fleet:main", at=1.0, number=0,
        steps={"read.py": {"parsed": 7}},
    )  # fmt: skip
    backend.append_events([event])
    fleet.close()
    shell("task", "start", "Port read.py to Python 3")
    shell("task", "step", "ported")
    assert session.events("step_completed")[0]["item"] == "read.py"
    assert shell("task", "steps").stdout == "parsed  7\nported\n"
    assert shell("task", "steps", "write.py").stderr == "0 steps of write.py\n"


def test_json_shows_the_plan_as_it_is_stored(session, shell):
    """Each command that changes it, and the one that lists it."""
    shell("task", "add", "read", "--json")
    plan = json.loads(shell("task", "start", "a\u202eb", "--json").stdout)
    assert plan == json.loads(shell("task", "list", "--json").stdout)
    assert plan == {
        "agentId": SESSION,
        "currentTask": "a\u202eb",
        "tasksCompleted": 0,
        "tasksTotal": 2,
        "tasks": session.record().tasks,
    }
    assert "\u202e" not in shell("task", "list").stdout


def test_an_installed_program_finds_its_agent_by_the_variable(session, shell):
    """ULTRAMON_AGENT_ID goes before the client's session; a real process."""
    shell(
        "task", "add", "read", run=run_process, ULTRAMON_AGENT_ID=SESSION,
        CLAUDE_CODE_SESSION_ID="another",
    )  # fmt: skip
    assert shown(session.record()) == ("0/1", None)


def test_a_session_that_an_orchestrator_named_otherwise_is_found(session, shell):
    """A client that was started with an agent id reports itself under its session's id."""
    shell("task", "add", "read", ULTRAMON_AGENT_ID="worker-7")
    assert shown(session.record()) == ("0/1", None)


@pytest.mark.parametrize(
    ("words", "environ", "code", "text"),
    [
        (["task", "add", "a"], {"CLAUDE_CODE_SESSION_ID": ""}, ExitCode.USAGE, "no agent: give"),
        (["task", "list"], {"CLAUDE_CODE_SESSION_ID": ""}, ExitCode.USAGE, "ultramon task list"),
        (["task", "handoff"], {"CLAUDE_CODE_SESSION_ID": ""}, ExitCode.USAGE, "task handoff"),
        (["task", "add", "a"], {"CLAUDE_CODE_SESSION_ID": "x"}, ExitCode.NOT_FOUND, "no agent x"),
        (["task", "list", "--agent", "x"], {}, ExitCode.NOT_FOUND, "no agent x"),
        (["task", "handoff"], {"CLAUDE_CODE_SESSION_ID": "../x"}, ExitCode.FAILURE, "../x"),
        (["task", "done", "a"], {}, ExitCode.NOT_FOUND, "has no task a"),
        (["task", "done"], {}, ExitCode.FAILURE, "no task is in progress"),
        (["task", "add", " "], {}, ExitCode.USAGE, "1 to 200 characters"),
        (["task", "add", "x" * 201], {}, ExitCode.USAGE, "1 to 200 characters"),
        (["task", "add"], {}, ExitCode.USAGE, "TASK"),
    ],
)
def test_what_cannot_be_done_is_said(session, shell, words, environ, code, text):
    """One line on stderr, and nothing is left behind of an agent that is not known."""
    before = session.record().to_json()
    done = shell(*words, code=code, **environ)
    assert text in done.stderr
    assert done.stdout == ""
    assert session.record().to_json() == before
    assert {path.stem for path in Path(session.state, "subagents").iterdir()} == {SESSION}


def test_a_task_of_the_clients_list_is_changed_there(session, shell):
    """The client would set it back at its next answer; tasks of both stand side by side."""
    create(session, "1", "read")
    shell("task", "add", "write", "read")
    for verb in ("start", "done"):
        done = shell("task", verb, "read", code=ExitCode.FAILURE)
        assert "in the client's own task list (id 1)" in done.stderr
    shell("task", "done", "write")
    listed(session, ("1", "read", "in_progress"), ("2", "test", "pending"))
    assert [task["name"] for task in session.record().tasks] == ["read", "test", "write"]
    assert shown(session.record()) == ("1/3", "read")


def test_a_plan_that_a_program_keeps_is_not_changed(backend, shell, session):
    """A monitor would write over it; its plan can be listed. Nor is one whose readings are sent."""
    with create_context_monitor("worker", backend=backend) as monitor:
        monitor.plan(["a", "b"])
        monitor.update_heartbeat()
        for words in (["task", "add", "c"], ["task", "done", "a"], ["task", "handoff"]):
            done = shell(*words, code=ExitCode.FAILURE, ULTRAMON_AGENT_ID="worker")
            assert "its program keeps the state" in done.stderr
        assert backend.load("worker").record.handoff is None
        assert shell("task", "list", "--agent", "work").stdout == "[ ] a\n[ ] b\n"
    PostedAgents(backend).start("posted-1", 1.0)
    done = shell("task", "add", "c", code=ExitCode.FAILURE, ULTRAMON_AGENT_ID="posted-1")
    assert "keeps the state, and no plan" in done.stderr


def test_an_agent_that_has_ended_keeps_its_plan(session, shell):
    """Whoever looks at it later sees what it did."""
    shell("task", "add", "read")
    session.call("SessionEnd", reason="other")
    assert "has ended" in shell("task", "done", "read", code=ExitCode.FAILURE).stderr
    assert shell("task", "list").stdout == "[ ] read\n"


def test_commands_and_hooks_do_not_lose_each_others_changes(session, shell):
    """They change one state at the same time, each inside its lock."""
    commands = [
        lambda n=n: run_process(
            "task", "add", f"own {n}", ULTRAMON_STATE_DIR=str(session.state),
            ULTRAMON_AGENT_ID=SESSION,
        )
        for n in range(4)
    ]  # fmt: skip
    hooks = [lambda n=n: create(session, str(n), f"listed {n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for one in [
            pool.submit(step) for pair in zip(commands, hooks, strict=True) for step in pair
        ]:
            one.result()
    names = sorted(task["name"] for task in session.record().tasks)
    assert names == sorted(f"{kind} {n}" for kind in ("own", "listed") for n in range(4))
    assert session.failures() == []


def test_a_full_plan_takes_no_more(session, shell):
    """A command says so instead of counting."""
    for part in range(3):
        shell("task", "add", *(f"{part} {n} {'x' * 180}" for n in range(300)))
    before = session.record().to_json()
    done = shell("task", "add", *(f"4 {n} {'x' * 180}" for n in range(300)), code=ExitCode.FAILURE)
    assert "is full" in done.stderr
    assert session.record().to_json() == before


def test_a_handoff_holds_plan_notes_and_the_way_back(session, shell, backend):
    """A fleet offers it to a successor; the agent continues until it stops."""
    session.tool(150_000)
    update(session, "1", "pending", "completed")
    shell("task", "add", "write", "test")
    shell("task", "start", "write")
    done = shell("task", "handoff", "--notes", "the parser is\nin core/")
    record = session.record()
    assert done.stdout.strip() == record.handoff["handoffId"]
    assert done.stderr == "1 task done, 1 begun, 1 left\n"
    assert record.active
    fleet = Fleet("claude-code", backend=backend)
    (ready,) = [event for event in fleet.poll() if event.name == "handoff_ready"]
    fleet.close()
    handoff = ready.handoff
    assert (handoff.completed, handoff.interrupted, handoff.remaining) == (
        ("task 1",), ("write",), ("test",),
    )  # fmt: skip
    assert (handoff.reason, handoff.tokens) == ("threshold_critical", 150_000)
    assert handoff.notes == "the parser is\nin core/"
    assert handoff.workspace.cwd == str(session.project)
    assert handoff.resume.command.endswith(f"claude --resume {SESSION}")
    assert handoff.to_json() == record.handoff


def test_a_later_handoff_replaces_the_record(session, shell):
    """Both are events; one successor can claim what is left in one epoch."""
    first = json.loads(shell("task", "handoff", "--notes", "one", "--json").stdout)
    second = json.loads(shell("task", "handoff", "--json").stdout)
    assert first["handoffId"] == second["handoffId"]
    assert (first["notes"], second["notes"]) == ("one", None)
    assert session.record().handoff == second
    assert [event["handoff"]["notes"] for event in session.events("handoff_ready")] == ["one", None]


def test_notes_can_come_from_stdin(session):
    """As a heredoc of the agent's shell gives them; a real process."""
    done = subprocess.run(
        [PROGRAM, "task", "handoff", "--notes", "-", "--agent", SESSION,
         "--state-dir", session.state],
        input="first line\n\u2713 second",
        capture_output=True,
        encoding="utf-8",
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == session.record().handoff["handoffId"]
    assert session.record().handoff["notes"] == "first line\n\u2713 second"


def test_a_handoff_waits_in_the_state_while_the_journal_is_busy(session, shell, backend):
    """It is stored all the same, and the next hook stores its event."""
    journal = Path(session.state, "journal.sqlite3")
    kept = journal.read_bytes()
    journal.unlink()
    journal.mkdir()
    shell("task", "handoff", "--notes", "one")
    assert [event["type"] for event in session.record().pending] == ["handoff_ready"]
    journal.rmdir()
    journal.write_bytes(kept)
    session.call("PostToolUse", tool_name="Bash")
    assert session.record().pending is None
    assert len(session.events("handoff_ready")) == 1
