"""The routes of existing hook scripts, over a real socket: cases as data, rights, cancellation."""

import json
import re
import time
from itertools import count
from pathlib import Path

import pytest
from helpers import DATA

from ultramon.notices.registration import StoredRegistration
from ultramon.routing import Inbox, queue_message, register
from ultramon.server.rate_limits import TokenBuckets
from ultramon.system.timestamps import parse_time
from ultramon.testing.contract.states import start

CASES = json.loads((DATA / "context_monitor.json").read_text())
REQUESTS = json.loads((DATA / "hook_requests.json").read_text())
ORIGINAL = (0.50, 0.65)
TAGGED = "context_monitor"
FAMILY = {"grandparent": None, "boss": "grandparent", "scout": "boss", "stranger": None}
NAMES = re.compile(r"\b(scout|boss|other|grandparent|stranger|retired|selfmade|blind|nobody)\b")
numbers = count(1)


class Cast:
    """The agents of one test on the server that all tests share: names with a number of their own.

    Attributes: `tokens`, of each agent by the name that the cases use, and of `admin` and `hooks`.
    """

    def __init__(self, serving):
        self.serving, self.backend = serving, serving.backend
        self._number = next(numbers)
        services = serving.services
        self.tokens = {"admin": services.admin_token, "hooks": services.hook_secret}

    def of(self, value):
        """Return a value of a case with the names of this test."""
        return json.loads(NAMES.sub(rf"\1-{self._number}", json.dumps(value)))

    def make(self, name, parent=None, label=None):
        """Have the admin make an agent known, or continue with it under the next generation."""
        body = {"agentId": self.of(name), "parentId": self.of(parent), "label": label}
        answer = self.serving.admin.post("/agents", json=body)
        assert answer.status_code == 201, answer.text
        self.tokens[name] = answer.json()["token"]

    def request(self, token, method, path, **options):
        """Send a request with a token."""
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return self.serving.anybody.request(method, path, headers=headers, **options)

    def post(self, name="scout", **body):
        """Post as a hook script does; return the answer."""
        body["session_id"] = self.of(name)
        answer = self.serving.hooks.post("/hooks/context-usage", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def ask(self, who, method, path, **body):
        """Ask for something of the scout; return the answer."""
        path = f"/sessions/{self.of('scout')}/{path}"
        return self.request(self.tokens[who], method, path, json=body or None)

    def monitored(self, who):
        """Return the registrations that a caller is shown."""
        answer = self.request(self.tokens[who], "GET", "/sessions/context-monitor")
        return answer.json()["monitored"]

    def context(self):
        return self.ask("admin", "GET", "context").json()

    def inbox(self, name):
        return Inbox(self.of(name), backend=self.backend)

    def register(self):
        register(self.of("scout"), self.of("scout"), backend=self.backend)

    def say(self, text, sender="scout", category=TAGGED):
        queue_message(
            self.of("boss"), text, sender=self.of(sender), category=category, backend=self.backend
        )

    @property
    def scout(self):
        return self.backend.load(self.of("scout")).record


@pytest.fixture
def bare(serving):
    return Cast(serving)


@pytest.fixture
def cast(bare):
    """A family and a stranger."""
    for name, parent in FAMILY.items():
        bare.make(name, parent, "reviewer" if name == "scout" else None)
    return bare


class Setting:
    """An agent, the recipient of its notices, and all messages."""

    def __init__(self, case, cast):
        self.case, self.cast = case, cast
        self.sent = []

    def restart(self):
        self.cast.make("scout", self.case.get("parent"), self.case.get("label"))

    def monitor(self, **body):
        answer = self.cast.ask("admin", "POST", "context-monitor", **body)
        assert (answer.status_code, answer.json()["enabled"]) == (200, body["enabled"])

    def register(self):
        notify = self.cast.of(self.case.get("notify", "scout"))
        if notify is not None:
            warning, critical = self.case.get("thresholds", ORIGINAL)
            self.monitor(
                enabled=True,
                notify_session_id=notify,
                requester_session_id=notify,
                warning_percentage=warning * 100,
                critical_percentage=critical * 100,
            )

    def unregister(self):
        self.monitor(enabled=False, requester_session_id=self.cast.of("scout"))

    def usage(self, percentage, tokens, at, status):
        answer = self.cast.post(
            used_percentage=percentage, total_input_tokens=tokens, sm_hook_emitted_at=at
        )
        assert answer["status"] == status
        if status != "stale_sample":
            assert answer["used_percentage"] == percentage

    def event(self, event, at, status):
        assert self.cast.post(event=event, sm_hook_emitted_at=at)["status"] == status

    def deliver(self):
        for name in ("scout", "boss", "other"):
            notices = self.cast.inbox(name).poll()
            self.sent += [(name, one.delivery, one.text, one.category) for one in notices]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_case_of_a_poster(case, bare):
    """What in-process posts lead to, posts of scripts lead to: notices, snapshot, saves."""
    setting = Setting(case, bare)
    setting.restart()
    setting.register()
    first_seq = bare.scout.seq
    for verb, *step in case["steps"]:
        getattr(setting, verb)(*step)
        setting.deliver()
    assert [list(one[:2]) for one in setting.sent] == [one[:2] for one in case["messages"]]
    for (_, _, text, category), (_, _, part) in zip(setting.sent, case["messages"], strict=True):
        assert bare.of(part) in text
        assert category == TAGGED
    if "announced" in case:
        audience = bare.of(case.get("notify", "scout"))
        told = bare.backend.registry.announcement(bare.of("scout"), audience)
        assert (None if told is None else told[1]) == case["announced"]
    if "saves" in case:
        assert bare.scout.seq - first_seq == case["saves"]
    shown = bare.context()
    if "compacting" in case:
        assert shown["compaction_active"] == case["compacting"]
    if "snapshot" in case:
        expected = case["snapshot"]
        ratio = expected["ratio"]
        assert shown["used_percentage"] == (None if ratio is None else round(ratio * 100, 1))
        assert shown["total_input_tokens"] == (None if ratio is None else expected["tokens"])
        if "at" in expected:
            assert parse_time(shown["sampled_at"]) == parse_time(expected["at"])


@pytest.mark.parametrize("case", REQUESTS, ids=lambda case: case["name"])
def test_every_request(case, cast):
    """One request after the other, by whom, and what is answered."""
    cast.make("retired")
    end = f"/agents/{cast.of('retired')}/end"
    assert cast.serving.admin.post(end, json={"outcome": "returned"}).status_code == 200
    start(cast.backend, cast.of("selfmade"), now=time.time())
    start(cast.backend, cast.of("blind"), now=time.time(), extra={"gauge": "none"})
    for who, method, path, body, status, expected in cast.of(case["steps"]):
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        headers = {"Content-Type": "application/json"} if content else {}
        token = cast.tokens[who.rpartition("-")[0] or who]
        answer = cast.request(token, method, path, content=content, headers=headers)
        assert answer.status_code == status, (path, body, answer.text)
        if expected is None:
            assert answer.content == b""
            continue
        given = answer.json()
        if isinstance(expected.get("detail"), str):
            assert expected["detail"] in given["detail"]
        else:
            assert {name: given[name] for name in expected} == expected
        assert given.get("warnings") == expected.get("warnings")


@pytest.mark.parametrize("header", ["X-Ultramon-Hook-Secret", "X-SM-Hook-Secret", "Authorization"])
def test_the_hook_secret_comes_in_either_header(serving, cast, header):
    """Old scripts add one header; the secret opens nothing but the routes of hooks."""
    secret = serving.services.hook_secret
    secret = f"Bearer {secret}" if header == "Authorization" else secret
    body = {"session_id": cast.of("scout"), "used_percentage": 20}

    def status(path, given, method="POST"):
        answer = serving.anybody.request(method, path, json=body, headers={header: given})
        return answer.status_code

    assert status("/hooks/context-usage", secret) == 200
    assert status("/hooks/context-usage", secret[:-1]) == 401
    assert status(f"/sessions/{cast.of('scout')}/context", secret, "GET") == 401
    assert cast.context()["used_percentage"] == 20


def test_too_many_posts_of_one_agent_are_refused(serving, cast):
    """Beyond its rate an agent gets 429 with any token; others are not affected."""
    scout = cast.of("scout")
    serving.services.agent_buckets = TokenBuckets(clock=lambda: 0.0)
    while serving.services.agent_buckets.take(scout):
        pass
    answer = serving.hooks.post("/hooks/context-usage", json={"session_id": scout})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert f"agent {scout} posts too often" in answer.json()["detail"]
    assert cast.post("boss")["status"] == "not_registered"


# sender, category, whether it is received already; how many are cancelled, and stay
CANCELS = {
    "one tagged": ([("scout", TAGGED, False)], 1, 0),
    "one of no category": ([("scout", None, False)], 0, 1),
    "three tagged, two of no category": (
        [("scout", TAGGED, False)] * 3 + [("scout", None, False)] * 2,
        3,
        2,
    ),
    "one of another sender": ([("stranger", TAGGED, False)], 0, 1),
    "one of another category": ([("scout", "handoff", False)], 0, 1),
    "nothing": ([], 0, 0),
    "one that was received": ([("scout", TAGGED, True)], 0, 0),
}


@pytest.mark.parametrize(("messages", "cancelled", "left"), CANCELS.values(), ids=CANCELS)
@pytest.mark.parametrize("by", ["invalidate-cache", "context_reset", "disable", "enable"])
def test_what_is_cancelled(cast, messages, cancelled, left, by):
    """A clear, either way, and a change of the registration cancel what the agent said before."""
    cast.register()
    for sender, category, is_received in messages:
        cast.say("text", sender, category)
        if is_received:
            assert len(cast.inbox("boss").poll()) == 1
    if by == "invalidate-cache":
        answer = cast.ask("boss", "POST", by)
        assert answer.json() == {"status": "ok", "cancelled": cancelled, "in_flight": 0}
    elif by == "context_reset":
        assert cast.post(event=by) == {"status": "flags_reset"}
    else:
        body = {"enabled": by == "enable", "notify_session_id": cast.of("scout")}
        answer = cast.ask("scout", "POST", "context-monitor", **body)
        assert answer.json()["enabled"] == (by == "enable")
    assert len(cast.inbox("boss").peek()) == left
    cast.say("later")
    assert [one.text for one in cast.inbox("boss").peek()][left:] == ["later"]


@pytest.mark.parametrize("skew_seconds", [-3600, 3600], ids=["slow", "fast"])
def test_a_clear_holds_by_order_of_arrival_whatever_the_clock_of_the_poster(cast, skew_seconds):
    """Posts after a clear from outside are notified, earlier ones are not, by no clock."""
    cast.register()

    def emitted_at():
        return time.time() + skew_seconds

    assert cast.post(used_percentage=90, sm_hook_emitted_at=emitted_at())["status"] == "ok"
    assert [one.facts["level"] for one in cast.inbox("scout").poll()] == ["critical"]
    assert cast.ask("boss", "POST", "invalidate-cache").status_code == 200
    # Stores the reading from before the clear once more.
    assert cast.post(event="handoff", last_handoff_path="/handoff.md")["status"] == "handoff_noted"
    assert cast.inbox("scout").poll() == []
    sampled_at = emitted_at()
    assert cast.post(used_percentage=91, sm_hook_emitted_at=sampled_at)["status"] == "ok"
    assert [one.facts["usageRatio"] for one in cast.inbox("scout").poll()] == [0.91]
    assert parse_time(cast.context()["sampled_at"]) == pytest.approx(sampled_at, abs=0.001)
    assert cast.post(used_percentage=1, sm_hook_emitted_at=sampled_at)["status"] == "stale_sample"


def test_a_clear_cancels_what_an_unregistered_agent_said(cast):
    """Its parent is notified of a compaction without a registration, not of one that is over."""
    inbox = cast.inbox("boss")
    cast.post(event="compaction")
    (notice,) = inbox.peek()
    assert (notice.agent_id, notice.category) == (cast.of("scout"), TAGGED)
    assert cast.post(event="context_reset") == {"status": "flags_reset"}
    assert inbox.peek() == []
    cast.post(event="compaction")
    assert len(inbox.peek()) == 1


def test_a_notice_in_flight_is_counted(cast):
    """A claimed message cannot be unsent."""
    cast.say("text")
    (notice,) = cast.inbox("boss").receive()
    answer = cast.ask("boss", "POST", "invalidate-cache")
    assert answer.json() == {"status": "ok", "cancelled": 0, "in_flight": 1}
    assert not cast.inbox("boss").extend(notice)


def test_stored_thresholds_that_are_none_are_shown(cast):
    """They notify no recipient, say so, and a new registration repairs them."""
    scout = cast.of("scout")
    cast.backend.registry.register(
        StoredRegistration(scout, scout, "explicit", '{"rungs": 7}', scout, 0.0)
    )
    cast.post(used_percentage=90)
    shown = cast.context()
    assert (shown["state"], shown["threshold_source"]) == ("thresholds_unavailable", "invalid")
    assert (shown["context_monitor_enabled"], shown["context_monitor_enforced"]) == (True, False)
    (listed,) = cast.monitored("boss")
    assert (listed["enforced"], listed["threshold_percentages"]) == (False, [])
    assert cast.inbox("scout").peek() == []
    answer = cast.ask("scout", "POST", "context-monitor", enabled=True, notify_session_id=scout)
    assert (answer.json()["threshold_source"], answer.json()["enforced"]) == ("default", True)


def test_a_registration_whose_agent_cannot_be_read_is_listed(cast):
    """To the admin only: its owner is no longer known."""
    cast.register()
    scout = cast.of("scout")
    Path(cast.backend.directory.file(scout)).write_bytes(b"{}")
    for who, is_listed in (("admin", True), ("boss", False)):
        assert (scout in [one["session_id"] for one in cast.monitored(who)]) == is_listed
    answer = cast.ask("admin", "GET", "context")
    assert answer.status_code == 503
    assert f"{scout}.json" in answer.json()["detail"]


def test_an_end_is_final(serving, cast):
    """It is recorded once and revokes the tokens; a new start under that id is a new life."""
    scout, posted = cast.of("scout"), serving.services.posted
    old, path = cast.tokens["scout"], f"/sessions/{scout}/context"
    assert cast.request(old, "GET", path).status_code == 200
    assert posted.finish(scout, "completed", time.time())
    assert not posted.finish(scout, "failed", time.time())
    assert (cast.scout.active, cast.scout.outcome) == (False, "completed")
    told = serving.backend.events(limit=100_000).events
    ends = [one for one in told if (one["type"], one["agentId"]) == ("agent_stopped", scout)]
    assert [one["outcome"] for one in ends] == ["completed"]
    assert cast.request(old, "GET", path).status_code == 401
    cast.make("scout")
    assert cast.scout.active
    assert cast.request(old, "GET", path).status_code == 401
    assert cast.request(cast.tokens["scout"], "GET", path).status_code == 200
