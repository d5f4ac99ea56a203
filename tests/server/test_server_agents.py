"""Agents over HTTP: create, measure, notify, hand over, end; and the rights to each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.running_server import Serving

from ultramon import ContextConfig, Fleet, create_context_monitor
from ultramon.server.main import make_services
from ultramon.server.workers.lost_agents import LostAgents
from ultramon.state.liveness import LOST_AFTER_SECONDS
from ultramon.testing import FakeClock

PREY = """
import os, signal
from ultramon import create_context_monitor
monitor = create_context_monitor("gone", parent_id="boss").start()
monitor.plan(["a", "b"])
with monitor.task("a"):
    pass
monitor.update_heartbeat()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def serving(shared_store):
    with Serving() as serving:
        yield serving


@pytest.fixture
def family(serving):
    """Clients of boss, its children kid and sister, and of a stranger."""
    clients = {}
    for name in ("boss", "stranger"):
        clients[name] = serving.make_agent(name)[1]
    for name in ("kid", "sister"):
        clients[name] = serving.make_agent(name, clients["boss"])[1]
    return clients


def events(serving, kind):
    return [one for one in serving.backend.events().events if one["type"] == kind]


def test_an_agent_lives_over_http(serving):
    """A parent creates a child, waits for notices, and gets them from the child's posts."""
    _, boss = serving.make_agent("boss", run="audit")
    made, kid = serving.make_agent(
        "kid", boss, label="scout", notify="parent", thresholds=[0.5, 0.8]
    )
    assert made["agentId"], made["generation"] == ("kid", 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(
            boss.post, "/agents/boss/messages/claim", json={"waitSeconds": 30, "limit": 1}
        )
        usage = {"session_id": "kid", "used_percentage": 61.5, "total_input_tokens": 123_000}
        assert kid.post("/hooks/context-usage", json=usage).json()["status"] == "ok"
        (notice,) = waiting.result().json()["messages"]
    assert (notice["agentId"], notice["category"]) == ("kid", "context_monitor")
    assert notice["facts"]["kind"] == "level"
    claim = {"claimToken": notice["claimToken"]}
    done = boss.post(f"/agents/boss/messages/{notice['messageId']}/acknowledge", json=claim)
    assert done.json() == {"messageId": notice["messageId"], "status": "acknowledged"}
    state = boss.get("/agents/kid").json()
    assert (state["run"], state["parentId"], state["label"]) == ("audit", "boss", "scout")
    assert (state["estimatedTokens"], state["usageRatio"]) == (123_000, 0.615)
    assert state["liveness"] == "alive"
    assert boss.post("/agents/kid/end", json={"outcome": "returned"}).json() == {"status": "ended"}
    assert boss.post("/agents/kid/end", json={}).json() == {"status": "ended_before"}
    assert boss.get("/agents/kid").json()["outcome"] == "returned"
    assert kid.get("/agents/kid").status_code == 401


def test_an_agent_sees_itself_and_its_children_only(serving, family):
    """A list holds no agents of others; the admin sees them all."""

    def listed(client, path="/agents"):
        return {one["agentId"] for one in client.get(path).json()["agents"]}

    assert listed(serving.admin) == {"boss", "kid", "sister", "stranger"}
    assert listed(family["boss"]) == {"boss", "kid", "sister"}
    assert listed(family["kid"]) == {"kid"}
    assert listed(serving.admin, "/agents?run=other") == set()


CALLS = [
    ("GET", "/agents/kid", None),
    ("POST", "/agents/kid/end", {}),
    ("POST", "/agents/kid/tokens", None),
    ("DELETE", "/agents/kid/tokens", None),
    ("GET", "/agents/kid/handoff", None),
    ("POST", "/agents/kid/handoff/claim", {"successorId": "next"}),
    ("POST", "/agents/kid/messages", {"text": "hello"}),
    ("POST", "/agents", {"agentId": "kid"}),
]
OWN = [
    ("GET", "/agents/kid/messages", None),
    ("GET", "/agents/kid/messages/stream", None),
    ("POST", "/agents/kid/messages/claim", {}),
    ("POST", "/agents/kid/messages/1/acknowledge", {"claimToken": "x"}),
    ("POST", "/agents/kid/messages/1/extend", {"claimToken": "x"}),
    ("POST", "/agents/kid/messages/1/reject", {"claimToken": "x", "error": ""}),
]
ADMIN = [
    ("GET", "/events", None),
    ("GET", "/events/stream", None),
    ("GET", "/queue", None),
    ("GET", "/queue/dead", None),
    ("POST", "/queue/dead/1/retry", None),
    ("DELETE", "/queue/dead/1", None),
]


@pytest.mark.parametrize(
    ("callers", "calls"),
    [
        (("stranger", "sister"), CALLS),
        (("stranger", "sister", "boss"), OWN),
        (("stranger", "kid", "boss"), ADMIN),
    ],
    ids=["family", "inbox", "admin"],
)
def test_who_is_no_kin_may_do_nothing(serving, family, callers, calls):
    """Each refusal is a 403, changes nothing, and is an event; without a token it is a 401."""
    before = (serving.admin.get("/agents/kid").json(), serving.admin.get("/queue").json())
    tried = 0
    for name in callers:
        for method, path, body in calls:
            answer = family[name].request(method, path, json=body)
            assert answer.status_code == 403, (name, method, path, answer.text)
            tried += 1
    for method, path, body in calls:
        assert serving.anybody.request(method, path, json=body).status_code == 401
    audit = events(serving, "audit")
    assert len(audit) == tried
    assert {one["agentId"] for one in audit} == set(callers)
    assert before == (serving.admin.get("/agents/kid").json(), serving.admin.get("/queue").json())


def test_a_parent_named_in_the_body_must_be_the_caller(serving, family):
    """An agent makes children of its own; the admin makes them for anybody."""
    answer = family["kid"].post("/agents", json={"agentId": "new", "parentId": "boss"})
    assert answer.status_code == 403
    assert events(serving, "audit")[-1]["claimed"] == "boss"
    serving.make_agent("new", family["kid"], parentId="kid")
    serving.make_agent("newer", parentId="boss")
    assert family["boss"].get("/agents/newer").status_code == 200
    itself = serving.admin.post("/agents", json={"agentId": "me", "parentId": "me"})
    assert itself.status_code == 422
    assert "another agent" in itself.json()["detail"]


def test_making_an_agent_again_makes_its_old_tokens_worthless(serving, family):
    """It continues under the next generation, with what it was given before."""
    made, again = serving.make_agent("kid", family["boss"], label="second")
    assert made["generation"] == 2
    assert family["kid"].get("/agents/kid").status_code == 401
    state = again.get("/agents/kid").json()
    assert (state["generation"], state["parentId"], state["label"]) == (2, "boss", "second")
    serving.make_agent("kid")
    assert family["boss"].get("/agents/kid").json()["label"] == "second"


def test_tokens_are_made_and_taken_back(serving, family):
    """A further token is as good as the first; taken back, neither is."""
    token = family["boss"].post("/agents/kid/tokens").json()["token"]
    further = serving.client(token)
    assert further.get("/agents/kid").status_code == 200
    assert family["kid"].delete("/agents/kid/tokens").json() == {"revoked": 2}
    assert further.get("/agents/kid").status_code == 401
    family["boss"].post("/agents/kid/end", json={})
    assert family["boss"].post("/agents/kid/tokens").status_code == 409


TOLD = [
    ({}, None),
    ({"notify": "self"}, ("{id}", "explicit")),
    ({"notify": "{id}"}, ("{id}", "explicit")),
    ({"notify": "parent"}, ("boss", "parent")),
    ({"notify": "boss"}, ("boss", "explicit")),
    ({"thresholds": [0.4]}, ("boss", "parent")),
]


def test_who_is_told_is_said_when_an_agent_is_made(serving, family):
    """Itself or its parent; the parent where only thresholds are named."""
    for number, (body, told) in enumerate(TOLD):
        name = f"new-{number}"
        notify = {"notify": name} if body.get("notify") == "{id}" else {}
        serving.make_agent(name, family["boss"], **{**body, **notify})
        found = serving.backend.registry.registrations(name)
        expected = [(told[0].format(id=name), told[1])] if told else []
        assert [(one.notify_id, one.source) for one in found] == expected, body


def test_an_ancestor_may_be_notified_and_by_the_admin_anybody(serving, family):
    """What is refused makes no agent."""
    _, kid = serving.make_agent("kid", family["boss"])
    serving.make_agent("grandchild", kid, notify="boss")
    serving.make_agent("watched", parentId="kid", notify="stranger")
    serving.make_agent("alone", notify="stranger")
    found = serving.backend.registry.registrations()
    assert [(one.agent_id, one.notify_id) for one in found] == [
        ("alone", "stranger"),
        ("grandchild", "boss"),
        ("watched", "stranger"),
    ]
    body = {"agentId": "refused", "notify": "stranger"}
    answer = kid.post("/agents", json=body)
    assert (answer.status_code, "did not ask" in answer.json()["detail"]) == (403, True)
    assert serving.admin.get("/agents/refused").status_code == 404


NONSENSE = [
    ({"notify": "nobody"}, 422),
    ({"notify": "parent"}, 422),
    ({"thresholds": [0.8, 0.5]}, 422),
    ({"thresholds": []}, 422),
    ({"thresholds": [1.5]}, 422),
    ({"agentId": "con"}, 422),
    ({"agentId": "a/b"}, 422),
    ({"agentId": "dot."}, 422),
    ({"run": "a b"}, 422),
    ({"label": "x" * 201}, 422),
    ({"unknown": 1}, 422),
    ({"label": 1}, 422),
]


def test_what_makes_no_sense_makes_no_agent(serving):
    """It is refused before anything is stored."""
    for body, status in NONSENSE:
        assert serving.admin.post("/agents", json=body).status_code == status, body
    assert serving.backend.list_agents() == []


def test_without_an_id_one_is_made_up(serving):
    """Two agents made without an id are two agents; an empty body is enough."""
    made = {serving.admin.post("/agents", json={}).json()["agentId"] for _ in range(2)}
    assert len(made) == 2


def test_an_agent_that_measures_itself_is_left_alone(serving):
    """Its own process holds it: it can neither be made nor ended from outside."""
    with create_context_monitor("own", backend=serving.backend):
        assert serving.admin.post("/agents", json={"agentId": "own"}).status_code == 409
        assert serving.admin.post("/agents/own/end", json={}).status_code == 422
        assert serving.admin.get("/agents/own").json()["active"]


def test_a_handoff_goes_to_one_successor(serving, family):
    """A parent reads and claims the handoff of its child; a second claim learns the first."""
    config = ContextConfig(context_limit_tokens=1_000)
    with create_context_monitor("worker", config, parent_id="boss", backend=serving.backend) as it:
        it.plan(["read", "write"])
        with it.task("read"):
            pass
        it.hand_off(notes="half of it is done", next_step="write")
    boss = family["boss"]
    shown = boss.get("/agents/worker/handoff").json()
    assert shown["handoff"]["remaining"] == ["write"]
    assert shown["prompt"].startswith("# Handoff from agent worker")
    assert len(boss.get("/agents/worker/handoff?maxTokens=60").json()["prompt"]) < len(
        shown["prompt"]
    )
    assert [one["agentId"] for one in boss.get("/handoffs").json()["handoffs"]] == ["worker"]
    assert family["kid"].get("/handoffs").json() == {"handoffs": []}
    claim = "/agents/worker/handoff/claim"
    for _ in range(2):
        won = boss.post(claim, json={"successorId": "next"})
        assert won.json() == {
            "handoffId": shown["handoff"]["handoffId"],
            "agentId": "worker",
            "successorId": "next",
        }
    lost = boss.post(claim, json={"successorId": "other"})
    assert lost.status_code == 409
    assert "claimed by next" in lost.json()["detail"]
    assert boss.get("/agents/kid/handoff").status_code == 404


def test_a_claim_over_http_holds_when_its_successor_begins(serving, family):
    """Else its handoff is offered again after ten minutes, in a run without an orchestrator."""
    for name in ("one", "two"):
        with create_context_monitor(name, parent_id="boss", backend=serving.backend) as monitor:
            monitor.plan(["read"])
            monitor.hand_off()
        claim = {"successorId": f"{name}.2"}
        assert family["boss"].post(f"/agents/{name}/handoff/claim", json=claim).is_success
    assert [claim.claimant for claim in serving.backend.pending_claims()] == [None, None]
    serving.make_agent("two.2", family["boss"])
    lost_agents = LostAgents(serving.services)
    lost_agents.check()
    assert len(events(serving, "handoff_ready")) == 2
    later = FakeClock(start=serving.services.clock.now() + LOST_AFTER_SECONDS + 1)
    for _ in range(2):
        LostAgents(make_services(serving.backend, serving.state_directory, clock=later)).check()
    assert serving.backend.pending_claims() == []
    assert [one["agentId"] for one in events(serving, "handoff_ready")] == ["one", "two", "one"]
    third = {"successorId": "third"}
    assert family["boss"].post("/agents/one/handoff/claim", json=third).is_success
    assert family["boss"].post("/agents/two/handoff/claim", json=third).status_code == 409


def test_the_handoff_of_a_killed_agent_is_the_one_that_was_rebuilt(serving, family):
    """It left none itself: a fleet noticed, and rebuilt it from the plan."""
    done = subprocess.run([sys.executable, "-c", PREY], check=False, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert family["boss"].get("/agents/gone/handoff").status_code == 404
    fleet = Fleet(backend=serving.backend)
    for _ in range(2):
        fleet.poll()
    fleet.close()
    shown = family["boss"].get("/agents/gone/handoff").json()["handoff"]
    assert (shown["reason"], shown["completed"], shown["remaining"]) == ("lost", ["a"], ["b"])
    assert [one["reason"] for one in family["boss"].get("/handoffs").json()["handoffs"]] == ["lost"]


def test_reading_changes_nothing(serving, family):
    """Every GET leaves states, messages and the event log as they were."""
    family["kid"].post("/agents/boss/messages", json={"text": "hello"})

    def everything():
        states = [one.record.to_json() for one in serving.backend.list_agents()]
        return states, serving.backend.queue.depth(now=0.0), serving.backend.events()

    before = everything()
    for path in (
        "/agents",
        "/agents/kid",
        "/agents/boss/messages",
        "/events",
        "/queue",
        "/queue/dead",
        "/handoffs",
    ):
        assert serving.admin.get(path).status_code == 200
    assert everything() == before


@pytest.mark.parametrize("shared_store", ["file"], indirect=True)
def test_a_state_that_cannot_be_read_is_named(serving, family):
    """It is listed beside the others; requested alone it is a 503."""
    path = serving.backend.directory.file("kid")
    with open(path, "w") as file:
        file.write("{")
    listed = serving.admin.get("/agents").json()
    assert [one["agentId"] for one in listed["unreadable"]] == ["kid"]
    assert len(listed["agents"]) == 3
    assert serving.admin.get("/agents/kid").status_code == 503
