"""Recipients of notices: one table of cases, through posts and through monitors; the rights."""

from __future__ import annotations

import json

import pytest
from helpers import DATA
from helpers.routing_agents import AGENT, backend, clock, make, put  # noqa: F401

from ultramon import ConfigurationError, Ladder, create_context_monitor
from ultramon.errors import AgentNotFoundError, NotPermittedError, RegistrationError
from ultramon.notices.message import Cancelled
from ultramon.routing import (
    Inbox,
    cancel_notices,
    queue_message,
    register,
    registrations,
    unregister,
)
from ultramon.server.posted_agents import PostedAgents
from ultramon.system.timestamps import parse_time
from ultramon.testing import fill

CASES = json.loads((DATA / "context_monitor.json").read_text())
ORIGINAL = (0.50, 0.65)


class Setting:
    """An agent, its recipient, and everything that was sent."""

    def __init__(self, case, backend, clock):
        self.case, self.backend, self.clock = case, backend, clock
        self.sent = []
        warning, critical = case.get("thresholds", ORIGINAL)
        self.ladder = Ladder.default(warning, critical, rearm_margin=None)

    def register(self):
        notify = self.case.get("notify", AGENT)
        if notify is not None:
            register(AGENT, notify, thresholds=self.ladder, backend=self.backend, clock=self.clock)

    def unregister(self):
        assert unregister(AGENT, AGENT, backend=self.backend) is not None

    def deliver(self):
        for recipient in (AGENT, "boss", "other"):
            inbox = Inbox(recipient, backend=self.backend, clock=self.clock)
            self.sent += [(recipient, n.delivery, n.text) for n in inbox.poll()]

    def check(self):
        case = self.case
        assert [list(one[:2]) for one in self.sent] == [one[:2] for one in case["messages"]]
        for (_, _, text), (_, _, part) in zip(self.sent, case["messages"], strict=True):
            assert part in text
            assert text.startswith("[ultramon] ")
        if "announced" in case:
            audience = case.get("notify", AGENT)
            told = self.backend.registry.announcement(AGENT, audience)
            assert (None if told is None else told[1]) == case["announced"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_posts(case, backend, clock):
    """Every case, as a poster of samples and events sees it."""
    setting = Setting(case, backend, clock)
    posted = PostedAgents(backend)
    options = {"parent_id": case.get("parent"), "label": case.get("label")}
    posted.start(AGENT, clock.now(), **options)
    setting.register()
    first_seq = backend.load(AGENT).record.seq
    for verb, *step in case["steps"]:
        if verb == "usage":
            percentage, tokens, at, status = step
            answer = posted.report_usage(
                AGENT,
                clock.now(),
                used_percentage=percentage,
                total_input_tokens=tokens,
                emitted_at=parse_time(at),
            )
            assert answer["status"] == status
            if status != "stale_sample":
                assert answer["used_percentage"] == percentage
        elif verb == "event":
            event, at, status = step
            answer = posted.report_event(AGENT, event, clock.now(), emitted_at=parse_time(at))
            assert answer == {"status": status}
        elif verb == "restart":
            posted = PostedAgents(backend)
            posted.start(AGENT, clock.now(), **options)
        else:
            getattr(setting, verb)()
        clock.advance(1)
        setting.deliver()
    setting.check()
    record = backend.load(AGENT).record
    if "saves" in case:
        assert record.seq - first_seq == case["saves"]
    if "compacting" in case:
        assert record.extra["posted"].get("compacting", False) == case["compacting"]
    if "snapshot" in case:
        expected = case["snapshot"]
        assert record.estimated_tokens == expected["tokens"]
        assert record.usage_ratio == pytest.approx(expected["ratio"], abs=1e-4)
        if "at" in expected:
            assert parse_time(record.extra["posted"].get("takenAt")) == parse_time(expected["at"])


def is_for_monitors(case):
    """Whether a case is about levels, not about posts that came late or say nothing."""
    steps = [step for step in case["steps"] if step[0] == "usage"]
    return not any(step[1] in (None, 0, 10) or step[3] for step in steps) and not (
        {"snapshot", "compacting", "saves"} & set(case)
    )


@pytest.mark.parametrize(
    "case", [case for case in CASES if is_for_monitors(case)], ids=lambda case: case["name"]
)
def test_monitors(case, backend, clock):
    """The same cases, as an agent with a monitor of its own lives them."""
    setting = Setting(case, backend, clock)

    family = {"parent_id": case.get("parent"), "label": case.get("label")}
    monitor = make(backend, clock, **family).start()
    setting.register()
    for verb, *step in case["steps"]:
        if verb == "usage":
            fill(monitor, step[0] / 100)
            monitor.update_heartbeat()
        elif verb == "event":
            if step[0] == "compaction":
                monitor.record_compaction()
            elif step[0] == "context_reset":
                monitor.clear()
        elif verb == "restart":
            monitor = make(backend, clock, takeover=True, **family).start()
        else:
            getattr(setting, verb)()
        clock.advance(1)
        setting.deliver()
    setting.check()
    monitor.stop()


@pytest.mark.parametrize(
    ("asked", "result"),
    [
        ({"requester": AGENT}, (AGENT, "explicit")),
        ({"requester": "boss"}, ("boss", "parent")),
        ({"requester": "boss", "notify": "boss"}, ("boss", "explicit")),
        ({"requester": "boss", "notify": AGENT}, (AGENT, "explicit")),
        ({"requester": AGENT, "notify": "boss"}, ("boss", "explicit")),
        ({"agent_id": "nobody", "requester": "nobody"}, AgentNotFoundError),
        ({"agent_id": "nobody", "requester": "stranger", "notify": ""}, AgentNotFoundError),
        ({"requester": "stranger", "notify": ""}, "notify_missing"),
        ({"requester": "stranger", "notify": "nobody"}, NotPermittedError),
        ({"requester": "grandparent"}, NotPermittedError),
        ({"requester": "sibling"}, NotPermittedError),
        ({"requester": AGENT, "notify": "nobody"}, "notify_unknown"),
        ({"requester": AGENT, "notify": "stranger"}, "notify_refused"),
        ({"requester": AGENT, "notify": "grandparent"}, ("grandparent", "explicit")),
        ({"requester": "boss", "notify": "grandparent"}, ("grandparent", "explicit")),
        ({"requester": "boss", "notify": "sibling"}, "notify_refused"),
        ({"requester": AGENT, "notify": "stranger", "as_admin": True}, ("stranger", "explicit")),
        ({"requester": AGENT, "notify": "nobody", "as_admin": True}, "notify_unknown"),
        ({"requester": "grandparent", "as_admin": True}, NotPermittedError),
        ({"requester": None, "notify": "stranger"}, ("stranger", "explicit")),
        ({"requester": None, "notify": "nobody"}, "notify_unknown"),
        ({"requester": None}, "notify_missing"),
        ({"agent_id": "ended", "requester": "stranger"}, NotPermittedError),
        ({"agent_id": "ended", "requester": "ended"}, "stopped"),
        ({"agent_id": "lost", "requester": "lost"}, "stopped"),
        ({"agent_id": "blind", "requester": "blind"}, "no_gauge"),
    ],
    ids=str,
)
def test_who_may_have_whom_told(backend, clock, asked, result):
    """The checks, in their order; what is refused changes nothing."""
    put(backend, "grandparent")
    put(backend, "boss", parent_id="grandparent")
    put(backend, AGENT, parent_id="boss")
    put(backend, "sibling", parent_id="boss")
    put(backend, "stranger")
    put(backend, "ended", active=False)
    put(backend, "lost", pid=None, lost_after_seconds=1.0, heartbeat_interval_seconds=1.0)
    put(backend, "blind", extra={"gauge": "none"})
    clock.advance(30)
    backend.heartbeat([(name, 1) for name in ("grandparent", "boss", AGENT, "blind")], clock.now())
    request = {"agent_id": AGENT, **asked}
    agent_id, requester = request.pop("agent_id"), request.pop("requester")
    if isinstance(result, tuple):
        made = register(agent_id, requester, backend=backend, clock=clock, **request)
        assert (made.notify_id, made.source) == result
        assert made.registered_by == (requester or "admin")
        assert registrations(backend=backend) == [made]
        return
    error = RegistrationError if isinstance(result, str) else result
    with pytest.raises(error) as raised:
        register(agent_id, requester, backend=backend, clock=clock, **request)
    if isinstance(result, str):
        assert raised.value.problem == result
    assert registrations(backend=backend) == []


def test_a_recipient_is_at_most_sixteen_generations_up(backend, clock):
    """The sixteenth ancestor may be notified, the seventeenth may not."""
    for number in range(18):
        put(backend, f"a{number}", parent_id=f"a{number + 1}")
    assert register("a0", "a0", "a16", backend=backend, clock=clock).notify_id == "a16"
    with pytest.raises(RegistrationError) as raised:
        register("a0", "a0", "a17", backend=backend, clock=clock)
    assert raised.value.problem == "notify_refused"


@pytest.mark.parametrize("parents", [("b", "c", "a"), ("b", "c", "b"), ("a", None, None)], ids=str)
def test_ancestors_in_a_cycle_are_refused(backend, clock, parents):
    """Whichever part of the line it is in; no agent is registered."""
    put(backend, "stranger")
    for agent_id, parent_id in zip("abc", parents, strict=True):
        put(backend, agent_id, parent_id=parent_id)
    with pytest.raises(RegistrationError, match="its ancestors form a cycle") as raised:
        register("a", "a", "stranger", backend=backend, clock=clock)
    assert raised.value.problem == "notify_cycle"
    assert registrations(backend=backend) == []


def test_an_ancestor_that_is_gone_ends_the_line(backend, clock):
    """Nothing says any more whose child it was."""
    put(backend, "manager")
    put(backend, AGENT, parent_id="pruned")
    with pytest.raises(RegistrationError) as raised:
        register(AGENT, AGENT, "manager", backend=backend, clock=clock)
    assert raised.value.problem == "notify_refused"


def test_everything_about_a_grandchild_arrives_at_the_manager(backend, clock):
    """Its levels, its compaction, its handoff and its end; its parent is sent nothing."""
    put(backend, "manager")
    put(backend, "boss", parent_id="manager")
    monitor = make(backend, clock, parent_id="boss").start()
    register(AGENT, "boss", "manager", backend=backend, clock=clock)
    received = []
    for step in (
        lambda: fill(monitor, 0.9),
        monitor.record_compaction,
        lambda: monitor.hand_off(notes="half of it"),
        monitor.stop,
    ):
        step()
        clock.advance(1)
        notices = Inbox("manager", backend=backend, clock=clock).poll()
        received += [(one.agent_id, one.facts["kind"]) for one in notices]
    assert received == [(AGENT, kind) for kind in ("level", "epoch", "handoff", "ended")]
    assert Inbox("boss", backend=backend, clock=clock).peek() == []


def test_ending_a_registration_needs_the_same_right(backend, clock):
    """The agent and its parent may, others may not; an unknown agent is an error."""
    put(backend, AGENT, parent_id="boss")
    register(AGENT, AGENT, backend=backend, clock=clock)
    with pytest.raises(NotPermittedError):
        unregister(AGENT, "stranger", backend=backend)
    with pytest.raises(AgentNotFoundError):
        unregister("nobody", "nobody", backend=backend)
    assert len(registrations(backend=backend)) == 1
    assert unregister(AGENT, "boss", backend=backend) == Cancelled(0, 0)
    assert unregister(AGENT, "boss", backend=backend) is None
    register(AGENT, AGENT, backend=backend, clock=clock)
    assert unregister(AGENT, None, backend=backend) == Cancelled(0, 0)


@pytest.mark.parametrize(
    "thresholds", [[], [0.0], [1.1], [0.6, 0.5], [0.5, 0.5], [float("nan")], ["0.5"], [True]]
)
def test_invalid_thresholds_change_nothing(backend, clock, thresholds):
    """They are refused as they are everywhere, and the registration stays as it was."""
    put(backend, AGENT)
    before = register(AGENT, AGENT, thresholds=[0.3], backend=backend, clock=clock)
    with pytest.raises(ConfigurationError):
        register(AGENT, AGENT, thresholds=thresholds, backend=backend, clock=clock)
    assert registrations(backend=backend) == [before]


def test_thresholds_can_be_plain_ratios(backend, clock):
    """Each is a rung that asks for nothing, announced once per epoch."""
    with create_context_monitor(AGENT, backend=backend, clock=clock) as monitor:
        made = register(AGENT, AGENT, thresholds=[0.3, 0.725], backend=backend, clock=clock)
        assert [rung["name"] for rung in made.ladder["rungs"]] == ["at-30", "at-72-5"]
        assert made.ladder_status == "custom"
        for ratio in (0.31, 0.29, 0.31, 0.9):
            fill(monitor, ratio)
            monitor.update_heartbeat()
        notices = Inbox(AGENT, backend=backend, clock=clock).receive()
    assert [notice.facts["level"] for notice in notices] == ["at-30", "at-72-5"]
    assert [notice.delivery for notice in notices] == ["sequential"] * 2


def test_an_agent_that_ends_takes_its_levels_along(backend, clock):
    """A notice that its window is full would send its parent to an agent that is gone."""
    with create_context_monitor(
        AGENT, parent_id="boss", notify="parent", backend=backend, clock=clock
    ) as monitor:
        fill(monitor, 0.75)
        fill(monitor, 0.9)
        inbox = Inbox("boss", backend=backend, clock=clock)
        assert [notice.facts["level"] for notice in inbox.peek()] == ["warning", "critical"]
    assert [notice.facts["kind"] for notice in inbox.receive()] == ["ended"]


def test_clearing_needs_a_right_or_a_person(backend, clock):
    """An agent may clear itself and its children; who gives no name is a person."""
    put(backend, AGENT, parent_id="boss")
    for requester in (AGENT, "boss", None):
        assert cancel_notices(AGENT, requester, backend=backend, clock=clock) == Cancelled(0, 0)
    with pytest.raises(NotPermittedError):
        cancel_notices(AGENT, "stranger", backend=backend, clock=clock)
    for requester in ("boss", None):
        with pytest.raises(AgentNotFoundError):
            cancel_notices("nobody", requester, backend=backend, clock=clock)


def test_after_a_clear_nothing_stale_arrives(backend, clock):
    """An unreceived notice of a compaction is gone; later notices and free messages come."""
    with create_context_monitor(AGENT, parent_id="boss", backend=backend, clock=clock) as monitor:
        fill(monitor, 0.4)
        monitor.record_compaction()
        inbox = Inbox("boss", backend=backend, clock=clock)
        assert len(inbox.peek()) == 1
        queue_message("boss", "done", sender=AGENT, backend=backend, clock=clock)
        assert cancel_notices(AGENT, "boss", backend=backend, clock=clock) == Cancelled(1, 0)
        assert [notice.text for notice in inbox.poll()] == ["done"]
        clock.advance(1)
        monitor.record_compaction()
        assert [notice.facts.get("reason") for notice in inbox.poll()] == ["compaction"]


def test_posts_about_unknown_agents_and_those_of_others(backend, clock):
    """Neither is an error for a poster; an agent that measures itself is left to it."""
    posted = PostedAgents(backend)
    own = put(backend, "own")
    for name, status in (("nobody", "unknown_session"), ("own", "measured_elsewhere")):
        usage = posted.report_usage(name, clock.now(), used_percentage=90.0)
        event = posted.report_event(name, "compaction", clock.now())
        assert usage == event == {"status": status}
    assert backend.load("own").record.to_json() == own.to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"used_percentage": -1},
        {"used_percentage": float("nan")},
        {"used_percentage": float("inf")},
        {"used_percentage": "50"},
        {"used_percentage": True},
        {"used_percentage": 50, "total_input_tokens": -5},
        {"used_percentage": 50, "total_input_tokens": 10**12},
    ],
    ids=str,
)
def test_impossible_posts_change_nothing(backend, clock, wrong):
    """A number that no window could have is a typed error."""
    posted = PostedAgents(backend)
    posted.start(AGENT, clock.now())
    before = backend.load(AGENT).record.to_json()
    with pytest.raises(ConfigurationError):
        posted.report_usage(AGENT, clock.now(), **wrong)
    with pytest.raises(ConfigurationError):
        posted.report_event(AGENT, "compactoin", clock.now())
    assert backend.load(AGENT).record.to_json() == before
