"""`context`, `context-monitor` and `clear`, as agents and people call them."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest
from helpers.program import run

from ultramon.backends.opening import open_backend
from ultramon.cli.exit_codes import ExitCode
from ultramon.context.ladder import Ladder
from ultramon.notices.message import Draft
from ultramon.notices.registration import StoredRegistration
from ultramon.server.posted_agents import PostedAgents
from ultramon.system.environment import state_directory
from ultramon.system.timestamps import parse_time
from ultramon.testing.contract.notices import ORIGINAL
from ultramon.testing.contract.states import start

AGENT = "abc12345"
READING = {
    "estimated_tokens": 86_214,
    "usage_ratio": 0.43,
    "context_limit": 200_498,
    "tokens_source": "reported",
    "ladder": ORIGINAL.to_json(),
    "label": "agent-1",
}


@pytest.fixture
def backend(shared_store):
    with closing(open_backend()) as backend:
        yield backend


@pytest.fixture
def call(backend):
    """Run a command as an agent, or as a person."""

    def call(*arguments, caller=None, variable="ULTRAMON_AGENT_ID", **environ):
        if caller is not None:
            environ[variable] = caller
        environ.setdefault("CLAUDE_SESSION_MANAGER_ID", "")
        return run(*arguments, ULTRAMON_STATE_DIR=state_directory(), **environ)

    return call


def put(backend, agent_id=AGENT, *, ago_seconds=0.0, **fields):
    """Start an agent that was measured so long ago; None = never."""
    now = time.time()
    measured_at = None if ago_seconds is None else now - ago_seconds
    return start(backend, agent_id, now=now, **{**READING, "measured_at": measured_at, **fields})


def said(done, code=ExitCode.OK):
    """What a command printed, after checking how it ended."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == ExitCode.OK else done.stderr


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "43%\n"),
        ({"usage_ratio": 0.4251, "context_limit": None}, "42%\n"),
        ({"ago_seconds": None}, "unknown\n"),
        ({"usage_ratio": None, "context_limit": None}, "unknown\n"),
        ({"ago_seconds": 910}, "43% (cached 15min ago)\n"),
        ({"ago_seconds": 500}, "43%\n"),
        ({"active": False, "outcome": "completed"}, "43% (cached; session stopped)\n"),
    ],
    ids=str,
)
def test_context_says_a_percentage(backend, call, fields, shown):
    """A percentage, or that there is none; one that is old, or the last, says so."""
    put(backend, **fields)
    assert said(call("context", AGENT)) == shown


def test_the_age_of_a_posted_reading_is_counted_from_its_arrival(backend, call):
    """A slow clock of the poster makes no fresh reading look old; its own time is shown too."""
    posted, now = PostedAgents(backend), time.time()
    posted.start(AGENT, now)
    posted.report_usage(AGENT, now, used_percentage=43, emitted_at=now - 3600)
    assert said(call("context", AGENT)) == "43%\n"
    shown = json.loads(said(call("context", AGENT, "--json")))
    assert parse_time(shown["sampledAt"]) == pytest.approx(now - 3600, abs=0.001)
    assert parse_time(shown["measuredAt"]) == pytest.approx(now, abs=0.001)


def test_context_finds_the_agent(backend, call):
    """By label, by the beginning of its id, or as the caller under either variable."""
    put(backend)
    for arguments in (("agent-1",), ("abc",)):
        assert said(call("context", *arguments)) == "43%\n"
    assert said(call("context", caller=AGENT)) == "43%\n"
    variable = "CLAUDE_SESSION_MANAGER_ID"
    assert said(call("context", caller=AGENT, variable=variable)) == "43%\n"
    assert "no agent nobody" in said(call("context", "nobody"), ExitCode.NOT_FOUND)


def test_context_needs_an_agent(call):
    """Without one it says how to name it, and ends as wrong usage."""
    done = call("context")
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == (
        "Error: no agent: name one, or run ultramon context inside a session with "
        "ULTRAMON_AGENT_ID\n"
    )


def test_context_tells_the_details(backend, call):
    """Everything that is known, a line each."""
    put(backend)
    said(call("context", "monitor", "enable", caller=AGENT))
    lines = said(call("context", AGENT, "--details")).splitlines()
    assert lines[0] == "Context: 43% (86,214 tokens)"
    assert lines[1].startswith("Sample: 20")
    assert lines[1].endswith("Z, reported")
    assert lines[2:] == [
        "Lifecycle: alive",
        "State: normal (warning 50%, critical 65%)",
        "Monitor: enabled, alerts -> self",
        "Compaction: not active",
        "Last handoff: none",
        "Session: agent-1 [abc12345] sdk",
    ]


@pytest.mark.parametrize(
    ("fields", "first"),
    [
        ({"epoch": 2, "usage_ratio": None}, "Context: unknown (at least 86,214 tokens)"),
        ({"context_limit": None}, "Context: 43%"),
    ],
    ids=["lower bound", "share alone"],
)
def test_context_makes_up_no_tokens(backend, call, fields, first):
    """After a compaction of unknown size text is a lower bound; a share alone has no tokens."""
    put(backend, **fields)
    assert said(call("context", AGENT, "--details")).splitlines()[0] == first


def test_context_tells_what_it_does_not_know(backend, call):
    """Before the first reading, of an agent that left a handoff, and that nobody registered."""
    handoff = {"reason": "threshold_warning", "createdAt": "2026-11-21T20:28:51.642Z"}
    put(backend, ago_seconds=None, label=None, handoff=handoff, ladder={"rungs": 7})
    lines = said(call("context", AGENT, "--details")).splitlines()
    assert lines == [
        "Context: unknown",
        "Sample: none",
        "Lifecycle: alive",
        "State: thresholds_unavailable",
        "Monitor: disabled",
        "Compaction: not active",
        "Last handoff: threshold_warning, 2026-11-21T20:28:51.642Z",
        "Session: abc12345 [abc12345] sdk",
    ]


def test_context_tells_where_the_last_handoff_is(backend, call):
    """The document that was noted for it, else why and when there was one."""
    handoff = {"reason": "threshold_warning", "createdAt": "2026-11-21T20:28:51.642Z"}
    noted = {"posted": {"handoffPath": "/srv/handoffs/\x1b[31mabc.md"}}
    put(backend, handoff=handoff, extra=noted)
    lines = said(call("context", AGENT, "--details")).splitlines()
    assert lines[-2] == "Last handoff: /srv/handoffs/\\x1b[31mabc.md"
    shown = json.loads(said(call("context", AGENT, "--json")))
    assert shown["lastHandoffPath"] == "/srv/handoffs/\\x1b[31mabc.md"
    assert shown["handoff"] == handoff


def test_context_as_json(backend, call):
    """The same, with the names of the state file."""
    put(backend, parent_id="boss")
    said(call("context", "monitor", "enable", AGENT, "--threshold", "40", caller="boss"))
    shown = json.loads(said(call("context", AGENT, "--json")))
    assert shown["usedPercentage"] == 43.0
    assert shown["tokens"] == 86_214
    assert shown["state"] == "at-40"
    assert shown["thresholds"] == [{"name": "at-40", "ratio": 0.4}]
    assert shown["thresholdSource"] == "custom"
    assert (shown["isRegistered"], shown["notifyId"]) == (True, "boss")
    assert shown["compactionActive"] is False


def test_context_hides_nothing_in_a_label(backend, call):
    """What came from outside cannot steer the terminal."""
    put(backend, label="\x1b[31mred\u202e")
    assert "Session: \\x1b[31mred\\u202e [" in said(call("context", AGENT, "--details"))


def test_an_agent_enables_and_disables_itself(backend, call):
    """With the sentences that scripts know; twice is no error."""
    put(backend)
    for _ in range(2):
        shown = said(call("context", "monitor", "enable", caller=AGENT))
        assert shown == f"Context monitoring enabled — notifications → self ({AGENT})\n"
    (one,) = backend.registry.registrations()
    assert (one.notify_id, one.ladder_status) == (AGENT, "default")
    for _ in range(2):
        shown = said(call("context", "monitor", "disable", caller=AGENT))
        assert shown == f"Context monitoring disabled for {AGENT}\n"
    assert backend.registry.registrations() == []


def test_a_parent_enables_its_child(backend, call):
    """The caller is notified, not the agent named; also under the older variable."""
    put(backend, parent_id="boss")
    expected = f"Context monitoring enabled for {AGENT} — notifications → boss\n"
    for variable in ("ULTRAMON_AGENT_ID", "CLAUDE_SESSION_MANAGER_ID"):
        done = call("context", "monitor", "enable", "agent-1", caller="boss", variable=variable)
        assert said(done) == expected
    shown = said(call("context", "monitor", "disable", AGENT, caller="boss"))
    assert shown == f"Context monitoring disabled for {AGENT}\n"


def test_a_parent_names_an_ancestor_as_the_recipient(backend, call):
    """A manager that watches the child of its worker; a stranger is refused."""
    put(backend, "manager", label="manager")
    put(backend, "boss", label="boss", parent_id="manager")
    put(backend, "stranger", label="stranger")
    put(backend, parent_id="boss")
    arguments = ("context", "monitor", "enable", "agent-1", "--notify")
    expected = f"Context monitoring enabled for {AGENT} — notifications → manager\n"
    assert said(call(*arguments, "manager", caller="boss")) == expected
    done = call(*arguments, "stranger", caller="boss")
    assert "did not ask for it" in said(done, ExitCode.FAILURE)
    (found,) = backend.registry.registrations()
    assert (found.notify_id, found.registered_by) == ("manager", "boss")


def test_a_person_names_the_agent_and_any_recipient(backend, call):
    """A person has no inbox, and may do everything."""
    put(backend)
    put(backend, "stranger", label="stranger")
    expected = f"Context monitoring enabled for {AGENT} — notifications → stranger\n"
    enabled = said(call("context", "monitor", "enable", AGENT, "--notify", "stranger"))
    assert enabled == expected
    shown = said(call("context", "monitor", "disable", AGENT))
    assert shown == f"Context monitoring disabled for {AGENT}\n"
    assert backend.registry.registrations() == []


@pytest.mark.parametrize(
    "arguments",
    [("enable", AGENT), ("enable",), ("enable", "--notify", AGENT), ("disable",)],
    ids=str,
)
def test_a_person_names_whom_it_means(backend, call, arguments):
    """Without a caller there is neither an agent nor a recipient to take instead."""
    put(backend)
    done = call("context", "monitor", *arguments)
    assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
    assert done.stderr == (
        "Error: ultramon context monitor enable/disable requires a managed session "
        "(ULTRAMON_AGENT_ID not set)\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("enable", AGENT), ExitCode.FAILURE, "Error: agent stranger may not decide"),
        (("disable", AGENT), ExitCode.FAILURE, "Error: agent stranger may not decide"),
        (("enable", "nobody"), ExitCode.NOT_FOUND, "Error: no agent nobody"),
        (("enable",), ExitCode.NOT_FOUND, "Error: no agent stranger"),
        (("restart",), ExitCode.FAILURE, "Error: Unknown action 'restart'. Use: enable, disable"),
        ((), ExitCode.USAGE, "Missing argument"),
        (("enable", "--threshold", "0"), ExitCode.USAGE, "--threshold"),
        (("enable", "--threshold", "101"), ExitCode.USAGE, "--threshold"),
        (("enable", "--critical-threshold", "0"), ExitCode.USAGE, "--critical-threshold"),
        (
            ("enable", "--threshold=40", "--critical-threshold=60"),
            ExitCode.USAGE,
            "--threshold and --critical-threshold cannot be combined",
        ),
        (
            ("enable", "--use-default-thresholds", "--threshold=40"),
            ExitCode.USAGE,
            "--threshold and --use-default-thresholds cannot be combined",
        ),
        (
            ("enable", "--use-default-thresholds", "--critical-threshold=60"),
            ExitCode.USAGE,
            "--critical-threshold and --use-default-thresholds cannot be combined",
        ),
        (
            ("enable", AGENT, "--critical-threshold=50"),
            ExitCode.FAILURE,
            "Error: ladder ratios=[0.5, 0.5] (from argument) is not allowed: must be strictly",
        ),
    ],
    ids=str,
)
def test_what_is_refused(backend, call, arguments, code, words):
    """One line says why, nothing is printed as data, nothing changes."""
    put(backend, parent_id="boss")
    done = call("context", "monitor", *arguments, caller="stranger")
    assert words in said(done, code)
    assert done.stdout == ""
    assert backend.registry.registrations() == []


@pytest.mark.parametrize(
    ("arguments", "rungs"),
    [
        ((), None),
        (("--use-default-thresholds",), None),
        (("--threshold=62.5", "--threshold=80"), [("at-62-5", 0.625), ("at-80", 0.8)]),
        (("--critical-threshold=80",), [("warning", 0.5), ("critical", 0.8)]),
    ],
    ids=str,
)
def test_thresholds_can_be_chosen(backend, call, arguments, rungs):
    """Instead of those chosen before."""
    put(backend)
    said(call("context", "monitor", "enable", "--threshold=10", caller=AGENT))
    said(call("context", "monitor", "enable", *arguments, caller=AGENT))
    (one,) = backend.registry.registrations()
    assert one.ladder_status == ("default" if rungs is None else "custom")
    if rungs is not None:
        assert [(rung["name"], rung["ratio"]) for rung in one.ladder["rungs"]] == rungs
        assert one.ladder["rungs"][-1]["action"] == (
            "force_return" if rungs[-1][0] == "critical" else "none"
        )


def test_success_is_claimed_only_where_it_is(backend, call):
    """Switched off, ultramon registers no agent: it says so, and that is no error."""
    put(backend)
    done = call("context", "monitor", "enable", caller=AGENT, ULTRAMON_DISABLED="1")
    assert said(done) == ""
    assert done.stderr == (
        f"FYI: context monitoring of {AGENT} is not enabled: ULTRAMON_DISABLED is set\n"
    )
    arguments = ("context", "monitor", "enable", "--json")
    shown = json.loads(said(call(*arguments, caller=AGENT, ULTRAMON_DISABLED="1")))
    assert shown == {"agentId": AGENT, "enabled": False}
    assert backend.registry.registrations() == []
    shown = json.loads(said(call(*arguments, caller=AGENT)))
    assert (shown["enabled"], shown["notifyId"]) == (True, AGENT)


def test_what_can_never_be_measured_is_refused(backend, call):
    """Registered and never measured would be the worst of states."""
    put(backend, active=False, outcome="completed")
    done = call("context", "monitor", "enable", caller=AGENT)
    assert "it has ended and will never be measured again" in said(done, ExitCode.FAILURE)


def test_status_without_registrations(call):
    """Says so, on stdout, and is no error."""
    shown = said(call("context", "monitor", "status"))
    assert shown == "No sessions currently registered for context monitoring.\n"
    assert json.loads(said(call("context", "monitor", "status", "--json"))) == {"monitored": []}


def test_status_shows_who_is_told_about_whom(backend, call):
    """Enabled ones only; an agent never measured, or without a valid ladder, is marked."""
    put(backend, parent_id="boss")
    put(backend, "blind", ago_seconds=None, label=None, ladder=Ladder.default().to_json())
    put(backend, "silent", label=None)
    put(backend, "unregistered")
    said(
        call(
            "context",
            "monitor",
            "enable",
            AGENT,
            "--threshold=40",
            "--threshold=62.5",
            caller="boss",
        )
    )
    said(call("context", "monitor", "enable", caller="blind"))
    backend.registry.register(
        StoredRegistration("silent", "silent", "explicit", '{"rungs": 7}', "silent", time.time())
    )
    title, rule, *rows = said(call("context", "monitor", "status")).splitlines()
    assert title.split() == ["Session", "Name", "Notify", "Target", "Thresholds", "Reading"]
    assert set(rule) == {"-"}
    cells = [[cell.strip() for cell in row.split("  ") if cell.strip()] for row in rows]
    assert [row[:-1] for row in cells] == [
        [AGENT, "agent-1", "boss", "40%, 62.5%"],
        ["blind", "blind", "70%, 85%"],
        ["silent", "silent", "invalid, no notices"],
    ]
    assert [row[-1].partition(",")[0] for row in cells] == ["43%", "none yet", "43%"]
    monitored = json.loads(said(call("context", "monitor", "status", "--json")))["monitored"]
    assert [one["agentId"] for one in monitored] == [AGENT, "blind", "silent"]
    assert [one["ladderStatus"] for one in monitored] == ["custom", "default", "invalid"]


def test_clear_cancels_and_counts(backend, call):
    """What was said and not received is gone, what is in flight is counted, the rest stays."""
    put(backend, parent_id="boss")
    for text in ("in flight", "stale", "stale"):
        backend.queue.queue_message(
            Draft("boss", text, sender=AGENT, category="context_monitor"), now=time.time()
        )
    backend.queue.queue_message(Draft("boss", "said", sender=AGENT), now=time.time())
    backend.queue.claim("boss", now=time.time(), limit=1)
    assert (
        said(call("queue", "clear", "agent-1"))
        == f"Cleared {AGENT}: 2 notices cancelled, 1 in flight\n"
    )
    assert [message.text for message in backend.queue.peek("boss", now=time.time())] == ["said"]
    done = json.loads(said(call("queue", "clear", AGENT, "--json", caller="boss")))
    assert done == {"agentId": AGENT, "cancelled": 0, "inFlight": 0}


def test_clear_needs_a_right(backend, call):
    """A person may, the agent and its parent may, another agent may not."""
    put(backend, parent_id="boss")
    for caller in (None, AGENT, "boss"):
        assert said(call("queue", "clear", AGENT, caller=caller)).startswith(
            f"Cleared {AGENT}: 0 notices"
        )
    assert "may not decide" in said(
        call("queue", "clear", AGENT, caller="stranger"), ExitCode.FAILURE
    )
    assert "no agent nobody" in said(call("queue", "clear", "nobody"), ExitCode.NOT_FOUND)
