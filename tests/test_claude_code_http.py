"""Tool calls told by requests: the same states and answers as by processes, whatever is sent."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from helpers.hooked_session import HookedSession, encoded, tokens_at
from helpers.requirements import missing, require_tool
from helpers.running_server import ServeProgram, Serving
from test_hook_hostile import BAD_IDS, NOT_UNDERSTOOD, ODD
from test_hook_recorded import Replay

from ultramon import mint_token
from ultramon.hosts import failure_log
from ultramon.hosts.claude_code import last_request
from ultramon.hosts.claude_code.setup.http_hooks import OFF_HEADER, PATH, REQUESTS
from ultramon.hosts.enforcement import REPLIES_TO_RETURN
from ultramon.hosts.hook_program import RELAY_FOLDER
from ultramon.system.processes import this_host

MIB = 1 << 20
_VARYING = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+Z|\b1[6-9]\d{8}(\.\d+)?\b|\d\d:\d\dZ"
    r'|"(crc32|seconds|secondsToWarning|secondsToCritical|secondsPerTurn|eventId|callEndedAt'
    r'|runsNothingSince)": [^,}]+'
)


class Said:
    """The answer to a request, as `hooked_session.Answer`: JSON with a text, or nothing."""

    def __init__(self, response):
        assert response.status_code in (200, 204), (response.status_code, response.text)
        assert (response.status_code == 204) == (response.content == b"")
        self.stdout = response.content
        self.value = response.json() if response.content else None

    @property
    def text(self):
        """The text for the agent, empty when there is none."""
        return self.value["hookSpecificOutput"]["additionalContext"] if self.value else ""


class RequestedSession(HookedSession):
    """A session whose tool calls are requests and whose other events are processes."""

    def __init__(self, serving, path, *arguments, **environ):
        super().__init__(path, *arguments, **environ)
        self.serving = serving

    def run(self, payload, **options):
        data = encoded(payload)
        if json.loads(data)["hook_event_name"] not in REQUESTS:
            return super().run(payload, **options)
        return Said(self.post(data))

    def post(self, data, client=None, **headers):
        """Send any bytes as the client does."""
        headers["Content-Type"] = "application/json"
        return (client or self.serving.hooks).post(PATH, content=data, headers=headers)


@pytest.fixture
def session(tmp_path):
    with Serving(directory=tmp_path / "hooked") as serving:
        yield RequestedSession(serving, tmp_path)


def states_of(session):
    """Every state of a session, without what differs from run to run."""
    shown = {}
    for agent_id in session.ids():
        record = json.loads((session.state / "subagents" / f"{agent_id}.json").read_bytes())
        text = json.dumps(record, sort_keys=True).replace(str(session.path), "/somewhere")
        shown[agent_id] = _VARYING.sub("…", text)
    return shown


@pytest.mark.parametrize(
    ("run", "transcripts"),
    [
        pytest.param("r2", [], marks=pytest.mark.exhaustive),
        ("r3", ["main"]),
        pytest.param("r7", [], marks=pytest.mark.exhaustive),
        ("r6", ["3af70d39_main", "7d20f82f_main", "subagent"]),
    ],
)
def test_a_recorded_session_comes_to_the_same_by_either_way(tmp_path, run, transcripts):
    """States, events and answers, for sessions, subagents, compactions and task lists."""
    (tmp_path / "process").mkdir()
    (tmp_path / "request").mkdir()
    by_process = Replay(tmp_path / "process", run, transcripts)
    by_request = Replay(tmp_path / "request", run, transcripts)
    last = len(by_process.calls) - 1
    by_process.to(last)
    with Serving(directory=by_request.session.state) as serving:
        by_request.session = RequestedSession(
            serving, by_request.session.path, by_request.session.session_id
        )
        by_request.to(last)
    assert states_of(by_request.session) == states_of(by_process.session)
    told = [
        [_VARYING.sub("…", one.text.replace(str(way.session.state), "…")) for one in way.answers]
        for way in (by_request, by_process)
    ]
    assert told[0] == told[1]
    assert any(told[0])
    events = [
        [(e["type"], e["agentId"], e["epoch"], e["n"]) for e in way.session.events()]
        for way in (by_request, by_process)
    ]
    assert events[0] == events[1]
    assert by_request.session.failures() == by_process.session.failures() == []
    assert last_request.last(str(by_request.session.state)) is not None


def test_what_the_session_was_started_with_holds_for_its_requests(session):
    """Audience, run, project, process and window come from the environment of its first hook."""
    session.environ |= {
        "ULTRAMON_AUDIENCE": "orchestrator",
        "ULTRAMON_RUN": "night",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "150000",
        "ANTHROPIC_API_KEY": "nobody-keeps-this",
    }
    session.call("SessionStart", source="startup")
    assert session.tool(tokens_at(20)).text == ""
    assert session.tool(tokens_at(20), "sub").text == ""
    for record in (session.record(), session.record("sub")):
        assert (record.run, record.context_limit, record.threshold_status) == (
            "night", 117_000, "critical",
        )  # fmt: skip
        assert record.pid == int(session.environ["CLAUDE_PID"])
    assert session.memory()["environment"]["CLAUDE_PROJECT_DIR"] == str(session.project)
    assert "nobody-keeps-this" not in json.dumps(session.record().to_json())


def test_a_session_that_no_process_has_told_of_is_not_measured(session):
    """Ultramon is off for it, or its states are elsewhere; a request makes no agent."""
    assert session.tool(tokens_at(20)).text == ""
    assert (session.ids(), session.failures()) == ([], [])


def test_requests_of_a_session_that_is_switched_off_do_nothing(session):
    """The header says it where the start of an earlier process had told otherwise."""
    session.call("SessionStart", source="startup")
    before = session.record().to_json()
    data = encoded(session.payload("PreToolUse", tool_use_id="toolu_1"))
    assert session.post(data, **{OFF_HEADER: "1"}).status_code == 204
    assert session.record().to_json() == before
    assert session.post(data, **{OFF_HEADER: ""}).status_code == 204
    assert session.record().phase == "in_tool"


def test_an_agent_of_another_kind_is_left_alone(session):
    """Its id in a payload changes nothing of it."""
    session.serving.services.posted.start("scout-1", 1_800_000_000.0)
    before = session.serving.backend.load("scout-1").record.to_json()
    data = encoded(session.payload("PostToolUse", session_id="scout-1", tool_use_id="toolu_1"))
    assert session.post(data).status_code == 204
    assert session.serving.backend.load("scout-1").record.to_json() == before


def test_a_note_for_a_compaction_is_no_answer_to_a_request(session):
    """The client takes JSON only; the event counts all the same."""
    session.freeze(handoff_note="Keep the list.")
    session.call("SessionStart", source="startup")
    session.reply(tokens_at(50))
    assert session.post(encoded(session.payload("PreCompact", trigger="auto"))).status_code == 204
    assert session.record().estimated_tokens == tokens_at(50)


def test_a_notice_in_an_answer_is_told_once(session):
    """It is acknowledged when the answer has left."""
    session.call("SessionStart", source="startup")
    sent = session.serving.admin.post(
        f"/agents/{session.session_id}/messages", json={"text": "look", "delivery": "urgent"}
    )
    assert sent.status_code == 201, sent.text
    assert "[ultramon] 1 message" in session.tool(tokens_at(80)).text
    assert session.tool(tokens_at(80)).text == ""


# --- who may


def test_only_the_hook_secret_and_the_admin_may_tell(session):
    """Everybody else is refused before anything is looked at."""
    session.call("SessionStart", source="startup")
    backend = session.serving.backend
    session.serving.services.posted.start("scout-1", 1_800_000_000.0)
    agent = session.serving.client(mint_token("scout-1", backend=backend))
    data = encoded(session.payload("PreToolUse", tool_use_id="toolu_1"))
    for client, status in (
        (session.serving.anybody, 401),
        (session.serving.client("wrong"), 401),
        (agent, 403),
    ):
        assert session.post(data, client).status_code == status
        assert session.record().phase == "waiting"
    (audit,) = session.events("audit")
    assert (audit["agentId"], audit["action"]) == ("scout-1", f"POST {PATH}")
    assert session.post(data, session.serving.admin).status_code == 204
    assert session.record().phase == "in_tool"


# --- hostile bodies


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A session that has begun, for bodies that change nothing."""
    path = tmp_path_factory.mktemp("hostile")
    with Serving(directory=path / "hooked") as serving:
        session = RequestedSession(serving, path)
        session.call("SessionStart", source="startup")
        yield session


def noted(session):
    """What the failure log holds, and empty it."""
    found = session.failures()
    (session.state / failure_log.log_path("", "claude-code")).unlink(missing_ok=True)
    return found


@pytest.mark.parametrize("data", NOT_UNDERSTOOD.values(), ids=NOT_UNDERSTOOD.keys())
def test_a_body_that_is_no_payload_is_refused(hostile, data):
    """A status of the 400s and a line in the log; too long a body does not come that far."""
    before = states_of(hostile)
    status = hostile.post(data).status_code
    problems = noted(hostile)
    if len(data) > MIB:
        assert (status, problems) == (413, [])
    elif not data:
        assert (status, problems) == (204, [])
    else:
        assert (status in (204, 422), len(problems)) == (True, 1)
    assert states_of(hostile) == before


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_an_odd_payload_is_taken(hostile, data):
    """What JSON allows and the client might send is no failure."""
    assert hostile.post(data).status_code == 204
    assert noted(hostile) == []
    assert hostile.ids() == [hostile.session_id]


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
def test_an_id_that_is_no_file_name_is_refused_over_http_too(hostile, bad):
    """Of a session or of a subagent; a line in the log, and no state."""
    for fields in ({"session_id": bad}, {"agent": bad}):
        if fields == {"agent": ""}:
            continue  # the client's word for the session itself
        payload = hostile.payload("PostToolUse", tool_use_id="x", **fields)
        assert hostile.post(encoded(payload)).status_code == 204
        assert len(noted(hostile)) == 1
    assert hostile.ids() == [hostile.session_id]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"schema": 1}', b"\xff" * 100])
def test_a_state_that_cannot_be_read_ends_in_the_log(session, damage):
    """No request fails the tool, and the state is kept as evidence by the next process."""
    session.call("SessionStart", source="startup")
    (session.state / "subagents" / f"{session.session_id}.json").write_bytes(damage)
    data = encoded(session.payload("PostToolUse", tool_use_id="toolu_1"))
    assert session.post(data).status_code == 204
    assert len(session.failures()) == 1
    session.call("UserPromptSubmit", prompt="go on")
    assert session.tool(tokens_at(50)).text == ""
    assert session.record().estimated_tokens == tokens_at(50)


def test_parallel_requests_of_one_agent_lose_nothing(session):
    """Tool calls that run side by side begin and end in any order."""
    session.call("SessionStart", source="startup")
    session.reply(tokens_at(80), *(f"toolu_{n}" for n in range(8)))

    def tell(event):
        payloads = [session.payload(event, tool_use_id=f"toolu_{n}") for n in range(8)]
        with ThreadPoolExecutor(8) as pool:
            return {one.status_code for one in pool.map(session.post, map(encoded, payloads))}

    assert tell("PreToolUse") == {204}
    assert sorted(session.memory()["running"]) == [f"toolu_{n}" for n in range(8)]
    assert tell("PostToolUse") == {204}
    assert (session.memory()["running"], session.record().phase) == ([], "working")
    assert session.record().host == "claude-code"
    assert session.record().hostname == this_host().hostname
    assert session.failures() == []


# --- a server that is killed


@pytest.fixture
def served(tmp_path):
    """A session whose tool calls go to `ultramon serve`, which a test may kill."""
    state = tmp_path / "hooked"
    state.mkdir(mode=0o700)
    with ServeProgram(state=state) as program:
        program.hooks = program.client((state / "hook.secret").read_text().strip())
        session = RequestedSession(program, tmp_path)
        session.call("SessionStart", source="startup")
        assert session.tool(tokens_at(50)).text == ""
        yield session


@pytest.mark.parametrize("between", [[], ["Stop"], ["Notification", "Stop", "PreCompact"]])
def test_what_a_dead_server_did_not_see_is_told_at_the_next_prompt(served, between):
    """Events without an answer may read the level before; that does not make it told."""
    served.serving.stop(signal.SIGKILL)
    with pytest.raises(httpx.TransportError):
        served.tool(tokens_at(30))
    for event in between:
        assert served.call(event, notification_type="idle_prompt").text == ""
    assert "(70 %)" in served.call("UserPromptSubmit", prompt="go on").text
    assert served.call("UserPromptSubmit", prompt="go on").text == ""


def test_a_warning_of_a_server_that_was_killed_is_told_at_the_next_prompt(served):
    """It has stored the level and dies before it answers: the client has read nothing."""
    serving = served.serving
    command = [require_tool("strace"), "-f", "-p", str(serving.process.pid), "-e", "signal=none"]
    command += ["-e", "trace=sendto", "-e", "inject=sendto:error=EPIPE:signal=KILL"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as killer:
        first = killer.stderr.readline()
        if "attached" not in first:
            missing(f"strace may not attach here: {first.strip()}")
        with pytest.raises(httpx.TransportError):
            served.tool(tokens_at(30))
        killer.communicate()
    assert serving.process.wait() == -signal.SIGKILL
    assert "(70 %)" in served.call("UserPromptSubmit", prompt="go on").text
    assert served.call("UserPromptSubmit", prompt="go on").text == ""


def test_a_session_that_goes_on_is_ended_by_an_answer_too(session):
    """By the same rule; the checkpoint has less time, since the client waits for less long."""
    session.freeze(enforce="critical", context_limit_tokens=200_000)
    session.call("SessionStart", source="startup")
    subprocess.run(["git", "init", "-q", session.project], check=True)
    (session.project / "a.py").write_text("a")
    full = tokens_at(20)
    assert "a hook ends this turn" in session.tool(full).text
    answers = [session.tool(full + number) for number in range(1, REPLIES_TO_RETURN)]
    assert [one.value for one in answers] == [None] * (REPLIES_TO_RETURN - 1)
    # A server that had too little time for an answer ends it with a later one.
    tokens = itertools.count(full + REPLIES_TO_RETURN)
    end = next(filter(None, (session.tool(number).value for number in tokens)))
    assert (end.pop("continue"), end.keys()) == (False, {"stopReason"})
    assert f"kept as {session.memory()['enforced']['checkpoint']}" in end["stopReason"]
    record = session.record()
    assert record.handoff is not None
    assert record.phase == "waiting"
    session.call("SessionEnd", reason="other")
    assert session.record().outcome == "cancelled"
    assert session.failures() == []


def test_the_hooks_of_a_server_stand_down_in_a_relay(session):
    """A request does not say so; what the relay's own hooks left in the session's state does."""
    installed, folder = session.installed, session.state / RELAY_FOLDER / "review"
    folder.mkdir(parents=True)
    session.installed = folder / "claude-code.json"
    inside = {"ULTRAMON_RELAY": "review", "ULTRAMON_STATE_DIR": str(session.state)}
    session.call("SessionStart", env=inside)
    session.installed = installed
    before = session.record()
    assert session.tool(tokens_at(20)).text == ""
    assert session.record().seq == before.seq
    # A person who resumes it by hand, in another process, is warned.
    session.call("SessionStart", source="resume", env={"CLAUDE_PID": "1"})
    assert session.tool(tokens_at(19)).text
    assert session.failures() == []
