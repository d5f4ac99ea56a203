"""Rights: every route with every kind of credential, and the audit event of a refusal."""

import sqlite3
import time
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from helpers.running_server import Serving

from ultramon.backends.local.backend import LocalBackend
from ultramon.cli.commands.events import event_line
from ultramon.server.app import create_app
from ultramon.server.http.authentication import OPEN_PATHS
from ultramon.state.events import AuditEvent, parse_event
from ultramon.system.environment import state_directory
from ultramon.testing import FakeClock
from ultramon.tokens import mint_token, revoke_tokens, verify_token

DAY_SECONDS = 86_400.0
REFUSED = {"detail": "a valid token is required: Authorization: Bearer …"}
WRONG = f"um_{'A' * 43}"

# Callers: the agent of the path (self), its direct parent, any other agent (stranger), the hook
# secret, and the admin. A number is the answer to an allowed caller; 401 and 403 are refusals, and
# then nothing changes. The agent of the path is {agent}.
OWN = {"self": 200, "parent": 200, "stranger": 403, "hook": 401, "admin": 200}
LISTED = {**OWN, "stranger": 200}
INBOX = {**OWN, "parent": 403}
ADMIN = {"self": 403, "parent": 403, "stranger": 403, "hook": 401, "admin": 200}
OPEN = dict.fromkeys(OWN, 200)


def answers(rights, status):
    """Return rights with another answer to those who may."""
    return {who: status if code == 200 else code for who, code in rights.items()}


USAGE = {"session_id": "{agent}", "used_percentage": 20}
ENABLE = {"enabled": True, "notify_session_id": "{agent}"}
HELD = {"claimToken": "none"}
ROUTES = {
    "GET /health": (OPEN, None),
    "GET /ready": (OPEN, None),
    "GET /metrics": (ADMIN, None),
    "GET /openapi.json": (OPEN, None),
    "HEAD /openapi.json": (OPEN, None),
    "POST /hooks/context-usage": ({**INBOX, "hook": 200}, USAGE),
    "POST /hooks/claude-code": (dict.fromkeys(OWN, 410), None),
    "GET /sessions/context-monitor": (LISTED, None),
    # The admin has no name of its own, so the body would have to say in whose.
    "POST /sessions/{session_id}/context-monitor": ({**OWN, "admin": 422, "parent": 200}, ENABLE),
    "GET /sessions/{session_id}/context": (OWN, None),
    "POST /sessions/{session_id}/invalidate-cache": (OWN, None),
    "GET /agents": (LISTED, None),
    "POST /agents": (answers(LISTED, 201), {"label": "a child of the caller"}),
    "GET /agents/{agent_id}": (OWN, None),
    "POST /agents/{agent_id}/end": (OWN, {"outcome": "completed"}),
    "POST /agents/{agent_id}/tokens": (answers(OWN, 201), None),
    "DELETE /agents/{agent_id}/tokens": (OWN, None),
    "GET /agents/{agent_id}/messages": (INBOX, None),
    "POST /agents/{agent_id}/messages": (answers(OWN, 201), {"text": "hello"}),
    "POST /agents/{agent_id}/messages/claim": (INBOX, {}),
    "POST /agents/{agent_id}/messages/{message_id}/acknowledge": (answers(INBOX, 404), HELD),
    "POST /agents/{agent_id}/messages/{message_id}/extend": (answers(INBOX, 404), HELD),
    "POST /agents/{agent_id}/messages/{message_id}/reject": (
        answers(INBOX, 404),
        {**HELD, "error": "none"},
    ),
    "GET /agents/{agent_id}/messages/stream": (INBOX, None),
    "GET /agents/{agent_id}/handoff": (answers(OWN, 404), None),
    "POST /agents/{agent_id}/handoff/claim": (answers(OWN, 404), {"successorId": "next"}),
    "GET /handoffs": (LISTED, None),
    "GET /events": (ADMIN, None),
    "GET /events/stream": (ADMIN, None),
    "GET /queue": (ADMIN, None),
    "GET /queue/dead": (ADMIN, None),
    "POST /queue/dead/{message_id}/retry": (answers(ADMIN, 404), None),
    "DELETE /queue/dead/{message_id}": (answers(ADMIN, 404), None),
}
ENDINGS = ("POST /agents/{agent_id}/end", "DELETE /agents/{agent_id}/tokens")
"""After these the agent has no token any more."""
numbers = count(1)


class Cast:
    """A family and a stranger, with every kind of token of them."""

    def __init__(self, serving):
        self.serving, self.backend = serving, serving.backend
        number, now = next(numbers), time.time()
        self.names = {one: f"{one}-{number}" for one in ("agent", "boss", "stranger", "retired")}
        self.agent = self.names["agent"]
        start, mint = serving.services.posted.start, self.mint
        for name in self.names:
            parent_id = self.names["boss"] if name in ("agent", "retired") else None
            start(self.names[name], now - 3 * DAY_SECONDS, parent_id=parent_id)
        revoked = mint("agent")
        revoke_tokens(self.agent, backend=self.backend)
        other_generation = mint("agent")
        start(self.agent, now - 3 * DAY_SECONDS, parent_id=self.names["boss"])
        expired = mint("agent", FakeClock(now - 2 * DAY_SECONDS))
        ended = mint("retired")
        serving.services.posted.finish(self.names["retired"], "completed", now)
        self.tokens = {
            "self": mint("agent"),
            "parent": mint("boss"),
            "stranger": mint("stranger"),
            "hook": serving.services.hook_secret,
            "admin": serving.services.admin_token,
        }
        own = self.tokens["self"]
        self.bad_credentials = {
            "none": None,
            "no token": "Bearer",
            "no scheme": own,
            "another scheme": f"Basic {own}",
            "malformed": "Bearer um_short",
            "two tokens": f"Bearer {own} {own}",
            "beyond ASCII": "Bearer um_äöü".encode("latin-1"),
            "one character off": f"Bearer {own[:-1]}{'A' if own[-1] != 'A' else 'Q'}",
            "unknown": f"Bearer {WRONG}",
            "revoked": f"Bearer {revoked}",
            "of another generation": f"Bearer {other_generation}",
            "expired": f"Bearer {expired}",
            "of an ended agent": f"Bearer {ended}",
            "an agent's name": f"Bearer {self.agent}",
        }

    def mint(self, name, clock=None):
        return mint_token(self.names[name], backend=self.backend, clock=clock)

    def send(self, authorization, route, body=None, **headers):
        """Send a request about the agent; return status and body, of a stream its beginning."""
        method, _, path = route.partition(" ")
        for name in ("session_id", "agent_id"):
            path = path.replace(f"{{{name}}}", self.agent)
        path = path.replace("{message_id}", "999999")
        if authorization is not None:
            headers["Authorization"] = authorization
        with self.serving.anybody.stream(method, path, json=body, headers=headers) as answer:
            is_json = answer.headers.get("Content-Type") == "application/json"
            if is_json and answer.read():
                return answer.status_code, answer.json()
            return answer.status_code, None

    def ask(self, who, route, body=None):
        return self.send(f"Bearer {self.tokens[who]}", route, self.named(body))

    def subject(self, who):
        """Return who that is, to others."""
        return self.names[{"self": "agent", "parent": "boss"}.get(who, who)]

    def named(self, body):
        if body is None:
            return None
        return {k: self.agent if v == "{agent}" else v for k, v in body.items()}

    def stored(self):
        """Return all files and rows, and beside them the audit events."""
        folder = Path(self.backend.directory.path)
        files = {one: one.read_bytes() for one in (folder / "subagents").iterdir()}
        rows, audits = {}, []
        with closing(sqlite3.connect(folder / "journal.sqlite3")) as journal:
            for (name,) in journal.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
                rows[name] = journal.execute(f"SELECT * FROM {name}").fetchall()
        for event in self.backend.events(limit=1_000_000).events:
            if event["type"] == "audit":
                audits.append(event)
        rows["events"] = [row for row in rows["events"] if "audit" not in row]
        rows.pop("sqlite_sequence", None)
        rows.pop("boots")  # what the machine's clock says, not a caller
        return (files, rows), audits


@pytest.fixture
def cast(serving):
    return Cast(serving)


@pytest.fixture(scope="module")
def untouched(serving):
    """One for all tests in which nothing happens."""
    return Cast(serving)


def routes_of(router):
    """Yield every route there is, also of routers within."""
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if inner is None:
            yield from (f"{method} {route.path}" for method in route.methods)
        else:
            yield from routes_of(inner)


def test_no_route_is_missing(serving):
    """A new route is listed here with its rights."""
    assert set(routes_of(create_app(serving.services))) == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_without_a_valid_token_learns_nothing(untouched, route):
    """The same answer to every kind of bad token, on every route, and nothing happens."""
    rights, body = ROUTES[route]
    before = untouched.stored()
    for kind, authorization in untouched.bad_credentials.items():
        status, answer = untouched.send(authorization, route, untouched.named(body))
        if rights is OPEN:
            assert status == 200, kind
        else:
            assert (status, answer) == (401, REFUSED), kind
    assert untouched.stored() == before


@pytest.mark.parametrize("route", ROUTES)
def test_who_may(serving, cast, route):
    """Each kind of caller gets the answer of the table; a refused one leaves an audit event."""
    rights, body = ROUTES[route]
    for who, expected in rights.items():
        before, audits = cast.stored()
        status, answer = cast.ask(who, route, body)
        assert status == expected, (who, answer)
        after, more = cast.stored()
        if expected in (401, 403, 404) or route.startswith(("GET", "HEAD")):
            assert after == before, who
        events = more[len(audits) :]
        assert len(events) == (expected == 403), who
        if events:
            assert events[0]["agentId"] == cast.subject(who)
            assert events[0]["action"].startswith(route.partition("{")[0])
        if route in ENDINGS and expected == 200:
            cast = Cast(serving)


SPOOFS = {
    "a requester": (
        "self",
        "POST /sessions/{session_id}/context-monitor",
        {**ENABLE, "requester_session_id": "{boss}"},
    ),
    "a requester by a stranger": (
        "stranger",
        "POST /sessions/{session_id}/context-monitor",
        {**ENABLE, "requester_session_id": "{agent}"},
    ),
    "a requester to end it": (
        "stranger",
        "POST /sessions/{session_id}/context-monitor",
        {"enabled": False, "requester_session_id": "{agent}"},
    ),
    "a child that says it is the parent": (
        "self",
        "POST /sessions/{session_id}/invalidate-cache",
        {"requester_session_id": "{boss}"},
    ),
    "a recipient that did not ask for notices": (
        "self",
        "POST /sessions/{session_id}/context-monitor",
        {**ENABLE, "notify_session_id": "{stranger}"},
    ),
    "another one's session": ("stranger", "POST /hooks/context-usage", USAGE),
    "another one's parent": ("stranger", "POST /agents", {"parentId": "{boss}"}),
    "another one's agent": ("stranger", "POST /agents", {"agentId": "{agent}"}),
    "a grown child": ("self", "POST /agents", {"agentId": "{boss}"}),
    "a name as long as a book": (
        "self",
        "POST /sessions/{session_id}/context-monitor",
        {**ENABLE, "requester_session_id": "x" * 100_000},
    ),
    "a name to be printed": (
        "self",
        "POST /sessions/{session_id}/context-monitor",
        {**ENABLE, "requester_session_id": "\x1b[2J\nboss"},
    ),
}


@pytest.mark.parametrize(("who", "route", "body"), SPOOFS.values(), ids=SPOOFS)
def test_a_claim_that_is_not_proven(cast, who, route, body):
    """A body that names another caller than the token gets 403 and an audit event."""
    body = {
        key: cast.names.get(value[1:-1], value)
        if isinstance(value, str) and value[:1] == "{"
        else value
        for key, value in body.items()
    }
    before, audits = cast.stored()
    status, answer = cast.send(f"Bearer {cast.tokens[who]}", route, body)
    assert (status, list(answer)) == (403, ["detail"])
    after, more = cast.stored()
    assert after == before
    (event,) = more[len(audits) :]
    typed = parse_event(event)
    assert isinstance(typed, AuditEvent)
    assert typed.agent_id == cast.subject(who)
    assert typed.action == route.replace("{session_id}", cast.agent)
    claimed = body.get("requester_session_id")
    if claimed is not None:
        assert typed.claimed == claimed[:200]
    line = event_line(event)
    assert "audit  " in line
    assert " refused POST /" in line
    assert line.isprintable()


def test_the_token_is_checked_before_the_route(cast):
    """Without a token a client learns neither the routes nor the form of a body."""
    for path in ("/", "/nowhere", "/hooks/nowhere", "/health/", "//health", "/openapi.json/"):
        assert cast.send(None, f"GET {path}") == (401, REFUSED)
        assert cast.ask("admin", f"GET {path}")[0] == 404
    answer = cast.serving.anybody.post(
        "/agents", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert (answer.status_code, answer.json()) == (401, REFUSED)
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    answer = cast.serving.admin.post(
        "/agents", content=b"{", headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 422
    assert cast.serving.anybody.post("/health").status_code == 405


def test_the_open_paths_are_three():
    """Every other path needs a credential, whether or not its route asks for a caller."""
    assert sorted(OPEN_PATHS) == ["/health", "/openapi.json", "/ready"]


def test_a_token_is_good_as_long_as_it_is_of_that_life(cast):
    """A take-over, a revocation and an end each make it worthless at once."""
    route = "GET /agents/{agent_id}"
    assert cast.ask("self", route)[0] == 200
    cast.serving.services.posted.start(cast.agent, time.time())
    assert cast.ask("self", route) == (401, REFUSED)
    cast.tokens["self"] = cast.mint("agent")
    assert cast.ask("self", route)[0] == 200
    assert verify_token(cast.tokens["self"], backend=cast.backend) == cast.agent


def test_a_store_that_cannot_be_read_opens_nothing(cast):
    """A token that cannot be verified gets 503, and nothing changes."""
    Path(cast.backend.directory.file(cast.agent)).write_bytes(b"{}")
    status, answer = cast.ask("self", "POST /agents/{agent_id}/messages", {"text": "hello"})
    assert status == 503
    assert f"{cast.agent}.json" in answer["detail"]


class CountingBackend(LocalBackend):
    """Counts how often the state of an agent is read."""

    loads = 0

    def load(self, agent_id):
        self.loads += 1
        return super().load(agent_id)


def test_a_request_about_its_own_agent_reads_the_state_once():
    """The state that proved the token is the one that is shown, and that names the parent."""
    backend = CountingBackend(state_directory())
    with Serving(backend) as serving:
        now = time.time()
        serving.services.posted.start("boss", now)
        serving.services.posted.start("scout", now, parent_id="boss")
        scout = serving.client(mint_token("scout", backend=backend))
        backend.loads = 0
        assert scout.get("/agents/scout").json()["agentId"] == "scout"
        assert backend.loads == 1
        assert scout.post("/agents/boss/messages", json={"text": "hello"}).status_code == 201
        assert backend.loads == 2
    backend.close()
