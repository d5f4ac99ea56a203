"""An agent that is asked to return and continues is ended, where that was chosen and is certain."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time

import pytest
from helpers import program
from helpers.child_of_session import CHILD, Launched
from helpers.hooked_session import SESSION, HookedSession, encoded, tokens_at

from ultramon.backends.local.state_files import StateDirectory
from ultramon.cli.event_line import event_line
from ultramon.handoff import HandoffRecord
from ultramon.hosts.calls.enforcement import (
    MAX_ENDS,
    REFS,
    REPLIES_TO_RETURN,
    WINDOW_SECONDS,
)
from ultramon.hosts.calls.hosted_agent import NOT_RETURNED
from ultramon.state.events import parse_event

FULL = tokens_at(20)
WARNED = "Context window: 160,0"
RULE = "The user has chosen that a hook ends this turn after 3 more replies that call tools."
CHOICES = {"enforce": "critical", "context_limit_tokens": 200_000}


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    session = HookedSession(tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path))
    session.freeze(**CHOICES)
    return session


def git(session, *arguments):
    done = subprocess.run(
        ["git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *arguments],
        cwd=session.project, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(session):
    """The project is a repository with a commit, a change and a new file."""
    git(session, "init", "-q")
    (session.project / "a.py").write_text("one\n")
    git(session, "add", ".")
    git(session, "commit", "-q", "-m", "first")
    (session.project / "a.py").write_text("two\n")
    (session.project / "new.py").write_text("new\n")
    return session.project


def stopped(answer):
    """Whether an answer ends the turn; then it says nothing else."""
    is_end = answer.value is not None and answer.value.get("continue") is False
    assert not is_end or answer.value.keys() == {"continue", "stopReason"}
    return is_end


def ask(session, agent=None, **options):
    """A call is answered with the request to return."""
    assert WARNED in session.tool(FULL, agent, **options).text
    return session


def go_on(session, agent=None, replies=REPLIES_TO_RETURN, tokens=FULL, **options):
    """It calls a tool in so many replies more; the answers."""
    return [session.tool(tokens + number, agent, **options) for number in range(1, replies + 1)]


def change(session, agent=None, **fields):
    """Change a stored state, or what the host keeps in it."""
    directory = StateDirectory(str(session.state))
    name = session.session_id if agent is None else f"{session.session_id}.{agent}"
    with directory.locked(name, 1.0):
        record = directory.read_to_replace(name)
        for field, value in fields.items():
            if hasattr(record, field):
                setattr(record, field, value)
            else:
                record.extra["claudeCode"][field] = value
        directory.replace(record, durable=False)


def test_a_session_that_goes_on_is_ended_with_its_handoff_and_a_checkpoint(session, repository):
    """After three replies; branch, index and tree of the user are as they were."""
    before = git(session, "status", "--porcelain"), git(session, "rev-parse", "HEAD")
    answers = go_on(ask(session))
    assert [stopped(one) for one in answers] == [False] * (REPLIES_TO_RETURN - 1) + [True]
    reason = answers[-1].value["stopReason"]
    record = session.record()
    path = session.state / "subagents" / f"{SESSION}.json"
    commit = git(session, "rev-parse", f"{REFS}/{SESSION}")
    assert reason == (
        "[ultramon] ended this turn: it was asked to return and continued. Its context window holds"
        " 160,003 of 200,000 tokens (80 %: critical, 75 % of 200k and more)."
        f" Its handoff is in {path}; the working tree"
        f" is kept as {commit[:12]} ({REFS}/{SESSION})."
    )
    assert git(session, "show", f"{commit}:a.py") == "two"
    assert git(session, "show", f"{commit}:new.py") == "new"
    assert (git(session, "status", "--porcelain"), git(session, "rev-parse", "HEAD")) == before
    handoff = HandoffRecord.model_validate(record.handoff)
    assert (handoff.reason, handoff.tokens) == ("threshold_critical", 160_003)
    assert commit[:12] in handoff.notes
    assert (record.active, record.phase) == (True, "waiting")
    left, enforced = session.events("handoff_ready", "return_enforced")
    assert left["handoff"] == record.handoff
    assert parse_event(enforced).reason == reason
    assert "session  [ultramon] ended this turn: it was asked" in event_line(enforced)
    session.call("SessionEnd", reason="other")
    record = session.record()
    assert (record.active, record.outcome, record.exit) == (
        False, "cancelled", {"reason": NOT_RETURNED},
    )  # fmt: skip
    assert record.handoff["handoffId"] == handoff.handoff_id
    assert session.failures() == []


def test_the_agent_is_told_the_rule_before_it_is_applied(session):
    """With the first request only, and not where no agent would be ended."""
    assert RULE in session.tool(FULL).text
    later = [one.text for one in go_on(session, replies=REPLIES_TO_RETURN - 1)]
    assert not any(RULE in one for one in later)
    for number, choices in enumerate(({"enforce_dry_run": True}, {"context_limit_tokens": None})):
        other = HookedSession(session.path, f"other-{number}")
        other.freeze(**CHOICES | choices)
        told = other.tool(FULL).text
        assert WARNED in told
        assert RULE not in told


def test_a_session_that_returns_is_left_alone(session):
    """Whether it needs no further call or two to note what is left."""
    go_on(ask(session), replies=REPLIES_TO_RETURN - 1)
    session.call("Stop")
    session.call("SessionEnd", reason="other")
    record = session.record()
    assert (record.outcome, record.handoff, session.events("return_enforced")) == (
        "completed", None, [],
    )  # fmt: skip


def test_a_subagent_is_ended_and_its_launcher_is_told(session, repository):
    """The client sends no SubagentStop, and hands its launcher an empty success."""
    session.tool(20_000)
    child = Launched(session)
    ask(session, CHILD)
    session.reply(FULL, agent=CHILD, text="I am half way.")
    answers = go_on(session, CHILD)
    assert stopped(answers[-1])
    assert "ended this subagent" in answers[-1].value["stopReason"]
    record = session.record(CHILD)
    assert (record.active, record.outcome, record.exit) == (
        False, "cancelled", {"reason": NOT_RETURNED},
    )  # fmt: skip
    assert record.handoff is not None
    text = child.returned().text
    assert f" did not finish: {NOT_RETURNED}; it returned no text. Its context window held" in text
    commit = git(session, "rev-parse", f"{REFS}/{SESSION}-{CHILD}")
    assert f"The working tree at its end is kept as {commit[:12]}" in text
    assert "Its state and handoff are in /" in text
    assert session.record(CHILD).outcome == "cancelled"
    assert session.record().active
    assert session.tool(20_100).text == ""


def off(session):
    session.freeze(**CHOICES | {"enforce": None})


def unsure_of_the_limit(session):
    change(session, limit_source="model")


def told_nobody(session):
    session.environ["ULTRAMON_AUDIENCE"] = "orchestrator"


def subagent_at_work(session):
    Launched(session)


def subagent_of_before_a_clear_at_work(session):
    before = HookedSession(session.path, "before")
    before.environ = session.environ
    before.call("SessionStart", source="startup")
    Launched(before, "old")
    change(session, predecessors=["before"])


def switched_off(session):
    (session.state / "claude-code.enforcement-off.json").write_text("{}")


def ended_before(session):
    change(session, enforced={"at": 1.0, "tokens": 1, "checkpoint": None, "problem": ""})


def failing(session):
    session.tool = lambda *args, make=session.tool, **options: make(
        *args, **options, event="PostToolUseFailure"
    )


@pytest.mark.parametrize(
    "spoil",
    [off, unsure_of_the_limit, told_nobody, subagent_at_work,
     subagent_of_before_a_clear_at_work, switched_off,
     ended_before, failing],
)  # fmt: skip
def test_where_one_condition_does_not_hold_it_goes_on(session, spoil):
    """Each alone keeps it from being ended, however often it continues."""
    ask(session)
    spoil(session)
    assert not any(stopped(one) for one in go_on(session, replies=REPLIES_TO_RETURN + 3))
    assert session.record().handoff is None
    assert session.events("return_enforced") == []


@pytest.mark.parametrize(("age_seconds", "expected"), [(130, False), (60, True)])
def test_a_reading_of_two_minutes_ago_ends_nobody(session, age_seconds, expected):
    """A tool ran for that long: what the window holds now is not known."""
    now = time.time()
    ages = iter(range(age_seconds + 90, 0, -1))
    session.reply_line = lambda *args, make=session.reply_line, **entry: make(
        *args, **entry | {"at": now - next(ages)}
    )
    ask(session)
    asked = session.memory()["asked"]
    change(session, asked=asked | {"at": now - age_seconds - 85})
    for _ in range(80):
        next(ages)  # the time in between
    assert any(stopped(one) for one in go_on(session)) is expected


@pytest.mark.parametrize("event", ["PreToolUse", "SessionEnd"])
def test_what_happens_while_git_works_is_seen(session, tmp_path, event):
    """Another call has begun, or the session is over: no agent is ended, and none counted."""
    payload = tmp_path / "payload"
    payload.write_text(json.dumps(session.payload(event, tool_use_id="toolu_z", reason="other")))
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    hook = shlex.join(session.command())
    program.write_text(f"#!/bin/sh\n{hook} < {payload}\nexit 1\n")
    program.chmod(0o700)
    session.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    answers = go_on(ask(session))
    assert not any(stopped(one) for one in answers)
    assert session.record().handoff is None
    assert session.record().active is (event == "PreToolUse")
    assert json.loads((session.state / "claude-code.enforced.json").read_text()) == {"ends": []}


def test_what_spoils_nothing_ends_it(session):
    """The same calls without a spoilt condition; else the test before could not fail."""
    answers = go_on(ask(session), replies=REPLIES_TO_RETURN + 3)
    assert [stopped(one) for one in answers].index(True) == REPLIES_TO_RETURN - 1


@pytest.mark.parametrize("source", ["host", "observed"])
def test_a_limit_that_the_host_or_the_provider_states_is_sure_enough(session, source):
    session.freeze(enforce="critical")
    ask(session)
    field = {"host": "windowTokens", "observed": "observedTokens"}[source]
    if source == "host":
        path = session.state / "claude-code.windows.json"
        path.write_text(json.dumps({"claude-sonnet-4-5": 199_999}))
        path.chmod(0o600)
    else:
        change(session, **{field: 199_999})
        change(session, installedAt="another")  # so that the limit is worked out anew
    answers = go_on(session, replies=REPLIES_TO_RETURN + 1)
    assert session.record().limit_source == source
    assert any(stopped(one) for one in answers)


def test_what_the_host_takes_for_an_unknown_model_is_not_sure_enough(session):
    """It is labelled as the host's, which never stated it."""
    session.freeze(enforce="critical")
    session.reply(800_000, "toolu_first", model="nobody-knows")
    session.call("PostToolUse", tool_use_id="toolu_first", tool_name="Read")
    answers = []
    for number in range(REPLIES_TO_RETURN + 3):
        session.reply(800_001 + number, f"toolu_{number}", model="nobody-knows")
        answers.append(session.call("PostToolUse", tool_use_id=f"toolu_{number}", tool_name="Read"))
    record = session.record()
    assert (record.limit_source, record.context_limit) == ("host", 1_000_000)
    assert record.action == "force_return"
    assert not any(stopped(one) for one in answers)


def test_without_having_been_told_before_it_is_told_first(session):
    """A request that was killed before its answer was none."""
    ask(session)
    change(session, asked=None)
    assert not any(stopped(one) for one in go_on(session))


def test_the_calls_of_one_reply_count_as_one(session):
    """So an agent that calls ten tools at once has not gone on ten times."""
    calls = [f"toolu_batch_{number}" for number in range(10)]
    ask(session)
    session.reply(FULL + 1, *calls)
    answers = [session.call("PostToolUse", tool_use_id=call, tool_name="Read") for call in calls]
    assert not any(stopped(one) for one in answers)


@pytest.mark.parametrize("begun", [True, False], ids=["parallel", "serial"])
def test_only_the_last_call_of_a_reply_ends_the_turn(session, begun):
    """The client runs the others all the same, also those that have not begun."""
    ask(session)
    go_on(session, replies=REPLIES_TO_RETURN - 1)
    calls = ["toolu_x", "toolu_y", "toolu_z"]
    session.reply(FULL + 9, *calls)
    if begun:
        for call in calls:
            session.call("PreToolUse", tool_use_id=call, tool_name="Read")
    order = [calls[1], calls[2], calls[0]]
    answers = []
    for call in order:
        if not begun:
            session.call("PreToolUse", tool_use_id=call, tool_name="Read")
        answers.append(session.call("PostToolUse", tool_use_id=call, tool_name="Read"))
    assert [stopped(one) for one in answers] == [False, False, True]


def test_a_subagent_that_has_been_silent_for_ten_minutes_hinders_nothing(session):
    """Its end may never have been reported."""
    ask(session)
    Launched(session)
    change(session, CHILD, last_activity=time.time() - 601)
    assert stopped(go_on(session)[-1])


def test_a_call_that_was_denied_hinders_nothing(session):
    """It began and never ended; the next reply shows that it does not run any more."""
    ask(session)
    session.reply(FULL + 1, "toolu_denied")
    session.call("PreToolUse", tool_use_id="toolu_denied", tool_name="Bash")
    assert any(stopped(one) for one in go_on(session, replies=REPLIES_TO_RETURN))


def test_outside_of_git_the_handoff_alone_is_stored(session):
    reason = go_on(ask(session))[-1].value["stopReason"]
    assert reason.endswith("; no git checkpoint: not in a git repository.")
    assert session.record().handoff["notes"] is None


def hanging(folder):
    """A git that never ends."""
    program = folder / "bin" / "git"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nsleep 60\n")
    program.chmod(0o700)
    return f"{program.parent}:{os.environ['PATH']}"


def test_a_git_that_hangs_costs_seconds_and_no_handoff(session, tmp_path):
    session.environ["PATH"] = hanging(tmp_path)
    started = time.monotonic()
    reason = go_on(ask(session))[-1].value["stopReason"]
    assert time.monotonic() - started < 10
    assert "; no git checkpoint: git rev-parse took more than 4 s" in reason
    assert session.record().handoff is not None


def test_a_git_that_refuses_is_quoted(session, repository):
    (repository / ".git" / "index").write_bytes(b"DIRC broken")
    reason = go_on(ask(session))[-1].value["stopReason"]
    assert "; no git checkpoint: git add failed: fatal: " in reason


def test_after_a_compaction_it_is_asked_anew(session):
    """The summary may have dropped the request."""
    go_on(ask(session), replies=REPLIES_TO_RETURN - 1)
    session.call("PreCompact", trigger="auto")
    session.boundary()
    session.call("PostCompact", trigger="auto")
    assert RULE in session.tool(FULL).text
    answers = go_on(session)
    assert [stopped(one) for one in answers] == [False] * (REPLIES_TO_RETURN - 1) + [True]


def test_a_chain_is_ended_once(session):
    """Also after it was resumed, and after a clear gave it another id."""
    assert stopped(go_on(ask(session))[-1])
    session.call("SessionEnd", reason="other")
    session.call("SessionStart", source="resume")
    session.call("UserPromptSubmit", prompt="go on")
    assert not any(stopped(one) for one in go_on(session, replies=REPLIES_TO_RETURN + 1))
    session.call("SessionEnd", reason="clear")
    new = HookedSession(session.path, "second")
    new.environ = session.environ
    new.call("SessionStart", source="clear")
    assert new.memory()["predecessors"] == [SESSION]
    assert not any(stopped(one) for one in go_on(ask(new)))


def test_an_end_that_no_client_has_heard_of_is_made_again(session):
    """The hook was killed between the state and its answer: the agent continued."""
    assert stopped(go_on(ask(session))[-1])
    found = session.memory()["enforced"]
    change(session, enforced=found | {"printer": [os.getpid(), "another start"]})
    assert stopped(session.tool(FULL + 10))
    left = session.events("handoff_ready")
    assert len({one["handoff"]["handoffId"] for one in left}) == 1
    assert [one["n"] > 0 for one in left] == [False, True]


def test_after_three_in_an_hour_it_switches_itself_off_and_says_so(session):
    """The user is notified, once; it stays off until it is installed again."""
    ends = [[time.time() - age, f"agent-{age}"] for age in (60, 120, WINDOW_SECONDS + 60)]
    ledger = session.state / "claude-code.enforced.json"
    ledger.write_text(json.dumps({"ends": ends}))
    ledger.chmod(0o600)
    assert stopped(go_on(ask(session))[-1])  # the third within the hour
    assert len(json.loads(ledger.read_text())["ends"]) == MAX_ENDS
    for name in ("second", "third"):
        other = HookedSession(session.path, name)
        other.environ = session.environ
        answer = go_on(ask(other))[-1]
        assert not stopped(answer)
        if name == "second":
            assert answer.value == {
                "systemMessage": "ultramon has switched enforcement off: 3 agents were ended within"
                " an hour, and second would be one more. It stays off until: ultramon install"
                " claude-code"
            }
        else:
            assert answer.value is None
        assert other.record().handoff is None
    assert session.failures() == [
        "ultramon has switched enforcement off: 3 agents were ended within an hour, and second"
        " would be one more. It stays off until: ultramon install claude-code"
    ]


@pytest.mark.parametrize("text", ["[", "{}", '{"ends": 5}', '{"ends": [[]]}', "5"])
def test_a_ledger_that_cannot_be_read_switches_it_off(session, text):
    """How many were ended is not known then; once it is installed again, that counts anew."""
    ledger = session.state / "claude-code.enforced.json"
    ledger.write_text(text)
    ledger.chmod(0o600)
    answer = go_on(ask(session))[-1]
    assert "cannot be read" in answer.value["systemMessage"]
    (session.state / "claude-code.enforcement-off.json").unlink()
    assert stopped(session.tool(FULL + 9))


def test_a_session_that_goes_on_after_all_ends_as_it_ends(session):
    """A person's next prompt, or a call of a client that never had the answer."""
    for name, event in (("typed", "UserPromptSubmit"), ("unheard", "PreToolUse")):
        other = HookedSession(session.path, name)
        other.environ = session.environ
        assert stopped(go_on(ask(other))[-1])
        other.call(event, prompt="go on", tool_use_id="toolu_more")
        other.call("SessionEnd", reason="prompt_input_exit")
        assert other.record().outcome == "completed"


def test_the_open_tasks_of_a_subagent_that_was_ended_are_the_sessions(session):
    """As those of one that ended by itself; the handoff names them too."""
    session.tool(20_000)
    Launched(session)
    task = {"id": "7", "subject": "measure", "description": ""}
    session.call(
        "PostToolUse", CHILD, tool_name="TaskCreate", tool_input={"subject": "measure"},
        tool_response={"task": task},
    )  # fmt: skip
    assert session.record(CHILD).tasks
    assert stopped(go_on(ask(session, CHILD), CHILD)[-1])
    assert [one["name"] for one in session.record().tasks] == ["measure"]
    assert session.record(CHILD).handoff["remaining"] == ["measure"]
    assert session.failures() == []


def test_a_dry_run_notes_what_it_would_have_ended_and_ends_nothing(session, repository):
    session.freeze(**CHOICES, enforce_dry_run=True)
    answers = go_on(ask(session), replies=REPLIES_TO_RETURN + 2)
    assert not any(stopped(one) for one in answers)
    (event,) = session.events("return_enforced")
    assert (event["dryRun"], event["checkpoint"]) == (True, None)
    assert "160,003 of 200,000 tokens" in event["reason"]
    assert session.record().handoff is None
    assert git(session, "for-each-ref", REFS) == ""
    session.freeze(**CHOICES)
    assert stopped(session.tool(FULL + 9))  # a dry run is no end of the chain


def test_what_cannot_be_stored_ends_nobody(session):
    """The disk is full, between the reading and the handoff: the agent is warned and continues."""
    ask(session)
    go_on(session, replies=REPLIES_TO_RETURN - 1)
    session.reply(FULL + 9, "toolu_last")
    payload = session.payload("PostToolUse", tool_use_id="toolu_last", tool_name="Bash")
    # As large as a state without a handoff: a further byte does not fit.
    size = os.stat(session.state / "subagents" / f"{SESSION}.json").st_size
    answer = session.run(
        encoded(payload), before=["prlimit", f"--fsize={size + 200}", "--"],
        env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert not stopped(answer)
    assert WARNED in answer.text
    record = session.record()
    assert (record.handoff, record.phase) == (None, "working")
    assert any("its handoff cannot be stored" in one for one in session.failures())
    ledger = json.loads((session.state / "claude-code.enforced.json").read_text())
    assert ledger == {"ends": []}


def test_the_end_of_a_subagent_waits_for_a_turn_that_reads_it(session):
    ask(session)
    go_on(session, replies=REPLIES_TO_RETURN - 1)
    child = Launched(session)
    child.work(FULL)
    child.stop()
    assert stopped(session.tool(FULL + 9))
    assert f"Subagent {CHILD}" in session.call("UserPromptSubmit", prompt="go on").text


def looked_at(session, *command):
    """What a command shows of the state directory."""
    done = program.run_process(*command, ULTRAMON_STATE_DIR=str(session.state))
    return done.stdout


def test_doctor_and_explain_show_what_was_ended(session):
    assert "at most 3 an hour: none was ended" in looked_at(session, "doctor")
    assert "enforced" not in looked_at(session, "explain", SESSION, "--details")
    go_on(ask(session))
    said = "with 160,003 tokens: asked to return, and continued; no git checkpoint: not in a git"
    assert said in looked_at(session, "explain", SESSION, "--details")
    assert said in looked_at(session, "doctor")
    change(session, enforced={"at": "now"})
    assert "enforced" not in looked_at(session, "explain", SESSION, "--details")
    (session.state / "claude-code.enforcement-off.json").write_text("{")
    assert "has switched itself off: " in looked_at(session, "doctor")


def test_doctor_and_explain_show_what_a_dry_run_would_have_ended(session):
    session.freeze(**CHOICES, enforce_dry_run=True)
    assert "dry run from critical: none would have been ended" in looked_at(session, "doctor")
    go_on(ask(session))
    for command in (["doctor"], ["explain", SESSION]):
        shown = looked_at(session, *command)
        assert "dry run: would have been ended at " in shown
        assert "with 160,003 tokens" in shown
