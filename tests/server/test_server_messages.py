"""Messages over HTTP: sent, waited for, claimed, acknowledged, and what a crash leaves of them."""

from __future__ import annotations

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from helpers.postgres_network import backend, network  # noqa: F401
from helpers.running_server import TIMEOUT_SECONDS, ServeProgram, Serving, Wire

from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.postgres.outbox.sender import SEND_WAIT_SECONDS
from ultramon.notices.message_rules import MAX_ATTEMPTS

CLAIM = "/agents/boss/messages/claim"


@pytest.fixture
def serving(shared_store):
    with Serving() as serving:
        yield serving


@pytest.fixture
def boss(serving):
    return client_of(serving, serving.admin, "boss")


def client_of(serving, caller, name):
    """Make an agent; return a client with its token."""
    return serving.make_agent(name, caller)[1]


def until(holds):
    """Return once a condition holds."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"


def claimed(client, **claim):
    answer = client.post(CLAIM, json=claim)
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"]


def settle(client, verb, message, **body):
    token = {"claimToken": message["claimToken"], **body}
    return client.post(f"/agents/boss/messages/{message['messageId']}/{verb}", json=token)


def let_die(serving, count, error):
    """Reject messages until they are dead."""
    queue = serving.backend.queue
    for attempt in range(1, MAX_ATTEMPTS + 1):
        # Each later than any lease or pause before it, and long before the messages expire.
        at = time.time() + 1_000 * attempt
        for _ in range(count):
            (message,) = queue.claim("boss", now=at, limit=1)
            queue.reject(message.id, message.claim_token, error, now=at)


def test_the_sender_is_whose_token_it_is(serving, boss):
    """A body that names one is refused; the admin is no sender."""
    kid = client_of(serving, boss, "kid")
    for caller, sender in ((kid, "kid"), (boss, "boss"), (serving.admin, None)):
        assert caller.post("/agents/boss/messages", json={"text": "hi"}).status_code == 201
        forged = {"text": "hi", "sender": "boss"}
        assert caller.post("/agents/boss/messages", json=forged).status_code == 422
        assert boss.get("/agents/boss/messages").json()["messages"][-1]["agentId"] == sender


def test_a_message_goes_to_oneself_to_the_parent_and_to_children(serving, boss):
    """Sisters and strangers are out of reach, and so is an unknown name."""
    kid = client_of(serving, boss, "kid")
    client_of(serving, boss, "sister")
    sent = {
        to: kid.post(f"/agents/{to}/messages", json={"text": "hi"}).status_code
        for to in ("kid", "boss", "sister", "nobody")
    }
    assert sent == {"kid": 201, "boss": 201, "sister": 403, "nobody": 404}
    assert boss.post("/agents/kid/messages", json={"text": "hi"}).status_code == 201
    assert serving.admin.post("/agents/nobody/messages", json={"text": "hi"}).status_code == 201


def test_no_client_writes_ultramons_own_notices(serving, boss):
    """Their categories are refused, so that what has one of them is a notice."""
    for category in ("context_monitor", "handoff", "lifecycle"):
        body = {"text": "hi", "category": category}
        assert serving.admin.post("/agents/boss/messages", json=body).status_code == 422
    body = {"text": "hi", "category": "free"}
    assert serving.admin.post("/agents/boss/messages", json=body).status_code == 201


def test_a_dedupe_key_is_the_senders_own(serving, boss):
    """The same key again is the same message; the key of another sender is another key."""
    kid = client_of(serving, boss, "kid")
    body = {"text": "hi", "dedupeKey": "once"}

    def send(caller):
        return caller.post("/agents/boss/messages", json=body).json()["messageId"]

    assert send(kid) == send(kid)
    assert send(boss) != send(kid)


def test_an_agent_that_sends_too_often_gets_429(serving, boss):
    """Its own bucket empties, whichever of its tokens it uses; the others' do not."""
    kid = client_of(serving, boss, "kid")

    def send():
        # The bucket fills while the request is on its way.
        while serving.services.agent_buckets.take("kid"):
            pass
        return kid.post("/agents/boss/messages", json={"text": "hi"})

    until(lambda: send().status_code == 429)
    until(lambda: send().headers.get("Retry-After") == "1")
    assert boss.post("/agents/boss/messages", json={"text": "hi"}).status_code == 201


def test_a_claim_waits_for_a_message(serving, boss):
    """It is answered by what is sent while it waits."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claimed, boss, waitSeconds=60, deliveries=["urgent"])
        until(lambda: len(serving.services.streams.polls) == 1)
        for delivery in ("sequential", "urgent"):
            body = {"text": delivery, "delivery": delivery}
            serving.admin.post("/agents/boss/messages", json=body)
        assert [one["text"] for one in waiting.result(TIMEOUT_SECONDS)] == ["urgent"]
    assert [one["text"] for one in claimed(boss)] == ["sequential"]
    assert claimed(boss, waitSeconds=0.01) == []
    assert len(serving.services.streams.polls) == 0


def test_nothing_is_claimed_for_a_client_that_has_left(serving, boss):
    """Its message goes to the next one, at the first attempt."""
    body = json.dumps({"waitSeconds": 60}).encode()
    with Wire(serving) as wire:
        wire.request(
            "POST",
            CLAIM,
            f"Authorization: {boss.headers['Authorization']}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            body=body,
        )
        until(lambda: len(serving.services.streams.polls) == 1)
    until(lambda: len(serving.services.streams.polls) == 0)
    serving.admin.post("/agents/boss/messages", json={"text": "hi"})
    assert [one["attempts"] for one in claimed(boss)] == [1]


def test_nothing_is_claimed_with_a_token_that_was_taken_back(serving, boss):
    """A claim that waits ends with 401 when its agent continues under another generation."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(boss.post, CLAIM, json={"waitSeconds": 60})
        until(lambda: len(serving.services.streams.polls) == 1)
        again = client_of(serving, serving.admin, "boss")
        assert waiting.result(TIMEOUT_SECONDS).status_code == 401
    serving.admin.post("/agents/boss/messages", json={"text": "hi"})
    assert [one["attempts"] for one in claimed(again)] == [1]


def test_a_server_that_stops_answers_who_waits(serving, boss):
    """The answer is that nothing came."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(claimed, boss, waitSeconds=60)
        until(lambda: len(serving.services.streams.polls) == 1)
        serving.stop()
        assert waiting.result(TIMEOUT_SECONDS) == []


def test_a_claim_is_settled_by_who_holds_it(serving, boss):
    """A wrong token is a 409 while the message is there, anything is a 404 once it has ended."""
    serving.admin.post("/agents/boss/messages", json={"text": "hi"})
    (message,) = claimed(boss)
    forged = {**message, "claimToken": "0" * 16}
    for verb, body in (("acknowledge", {}), ("extend", {}), ("reject", {"error": "no"})):
        assert settle(boss, verb, forged, **body).status_code == 409
    assert settle(boss, "extend", message, leaseSeconds=60).json()["status"] == "extended"
    assert settle(boss, "acknowledge", message).json()["status"] == "acknowledged"
    for verb, body in (("acknowledge", {}), ("extend", {}), ("reject", {"error": "no"})):
        assert settle(boss, verb, message, **body).status_code == 404
    serving.admin.post("/agents/boss/messages", json={"text": "again"})
    (message,) = claimed(boss)
    assert settle(boss, "reject", message, error="not now").json()["status"] == "rejected"
    assert claimed(boss) == []


def test_what_waits_is_listed_by_number(serving, boss):
    """Pages follow each other without gap; a claimed message still waits."""
    for text in "abc":
        serving.admin.post("/agents/boss/messages", json={"text": text})
    claimed(boss, limit=1)
    path = "/agents/boss/messages"
    first = boss.get(path, params={"limit": 2}).json()["messages"]
    rest = boss.get(path, params={"after": first[-1]["messageId"]}).json()["messages"]
    assert [one["text"] for one in first + rest] == ["a", "b", "c"]
    assert "claimToken" not in first[0]


def test_dead_messages_are_seen_tried_again_and_dropped(serving, boss):
    """The admin finds them with the reason, and each can be handled once."""
    for text in "ab":
        serving.admin.post("/agents/boss/messages", json={"text": text})
    let_die(serving, 2, "it cannot be parsed")
    dead = serving.admin.get("/queue/dead").json()["dead"]
    assert [(one["text"], one["lastError"]) for one in dead] == [
        ("a", "it cannot be parsed"),
        ("b", "it cannot be parsed"),
    ]
    assert serving.admin.get("/queue").json()["recipients"][0]["dead"] == 2
    assert serving.admin.get("/queue/dead?recipient=kid").json() == {"dead": []}
    one, two = (f"/queue/dead/{message['messageId']}" for message in dead)
    assert serving.admin.post(f"{one}/retry").json()["status"] == "ready"
    assert serving.admin.delete(two).json()["status"] == "dropped"
    assert serving.admin.post(f"{one}/retry").status_code == 404
    assert serving.admin.delete(two).status_code == 404
    assert [message["text"] for message in claimed(boss)] == ["a"]
    kinds = [event["type"] for event in serving.admin.get("/events").json()["events"]]
    assert kinds.count("dead_letter") == 2


def test_a_dead_message_that_was_sent_again_is_not_tried_again(serving, boss):
    """Its dedupe key is another's now: 409, and it stays dead."""
    body = {"text": "hi", "dedupeKey": "once"}
    number = serving.admin.post("/agents/boss/messages", json=body).json()["messageId"]
    let_die(serving, 1, "no")
    assert serving.admin.post("/agents/boss/messages", json=body).json()["messageId"] != number
    assert serving.admin.post(f"/queue/dead/{number}/retry").status_code == 409


def test_a_message_claimed_when_the_server_was_killed_comes_again(tmp_path):
    """Killed between claim and acknowledge: after its lease the next server hands it out."""
    state = tmp_path / "state"
    with ServeProgram(state=state) as program:
        made = program.admin.post("/agents", json={"agentId": "boss"}).json()
        boss = program.client(made["token"])
        program.admin.post("/agents/boss/messages", json={"text": "hi"})
        (lost,) = claimed(boss, leaseSeconds=1)
        assert program.stop(signal.SIGKILL) == -signal.SIGKILL
    with ServeProgram(state=state) as program:
        boss = program.client(made["token"])
        (again,) = claimed(boss, waitSeconds=30)
        assert (again["messageId"], again["attempts"]) == (lost["messageId"], 2)
        assert settle(boss, "acknowledge", lost).status_code == 409
        assert settle(boss, "acknowledge", again).status_code == 200
    backend = LocalBackend(str(state))
    assert backend.queue.peek("boss", now=time.time()) == []
    backend.close()


def test_a_request_waits_for_a_slow_database(backend, network):
    """Longer than an agent would: the answer has the number of a message that was stored."""
    with Serving(backend) as serving, ThreadPoolExecutor(1) as pool:

        def send():
            answer = serving.admin.post("/agents/boss/messages", json={"text": "hello"})
            return answer.json()["messageId"]

        first = send()
        network.hang()
        sending = pool.submit(send)
        is_answered, _ = wait([sending], timeout=5 * SEND_WAIT_SECONDS)
        network.flow()
        assert not is_answered
        assert sending.result(TIMEOUT_SECONDS) > first > 0
