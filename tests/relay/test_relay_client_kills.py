"""Relays of real clients that are killed, interrupted, or have to end a context."""

import signal
import threading

import pytest
from helpers.client_relay import begin_project, plan, touch
from helpers.relayed import end_contexts, ended_at_last, finish
from helpers.scripted_model import Step
from helpers.waiting import until

from ultramon.relay.prompts import hand_over_note

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
CRITICAL_TOKENS = {"codex": 225_000, "gemini": 930_000, "qwen": 900_000}
"""In the window of each client's model, above the rung where an agent has to return."""

pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("name", CRITICAL_TOKENS)]


@pytest.fixture
def relay(tmp_path, name):
    """A project, and a client."""
    return begin_project(name, tmp_path)


@pytest.fixture
def gate():
    """What a reply waits for; open at the end, whatever became of the test."""
    gate = threading.Event()
    yield gate
    gate.set()


def kill(relay):
    relay.kill()
    relay.communicate()


def job(name, gate):
    """The first of two items is done and claimed; the reply that does the second waits."""
    return [
        Step(20_000, plan(("a", "pending"), ("b", "pending"), agent=name)),
        Step(21_000, touch("a")),
        Step(22_000, plan(("a", "completed"), ("b", "in_progress"), agent=name)),
        Step(23_000, touch("b"), until=gate.is_set),
    ]


def rest(name):
    """Another context does the second item."""
    return [
        Step(20_000, plan(("b", "in_progress"), agent=name)),
        Step(21_000, touch("b")),
        Step(22_000, plan(("b", "completed"), agent=name)),
        Step(23_000, text="All is written."),
    ]


def test_a_relay_and_its_client_that_are_killed_lose_nothing(relay, name, gate):
    """Killed in the middle of an item; the next relay continues with what is left."""
    with relay.client.api({"MAIN": [*job(name, gate), *rest(name)]}) as api:
        begun = relay.begin(*relay.items("a", "b"), *CHECK)
        with ended_at_last(begun):
            until(lambda: len(api.requests) == 4, begun)
            kill(begun)
            assert end_contexts(relay.state)
        gate.set()
        code, result, told = finish(relay.relay("--resume", "job", extra=()), SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["lost"]) == (2, [])
    assert len(result["work"]["repeated"]) <= 1


def test_a_context_survives_its_relay(relay, name, gate):
    """The next relay takes it over; the client was asked nothing twice."""
    steps = [
        *job(name, gate),
        Step(24_000, plan(("a", "completed"), ("b", "completed"), agent=name)),
        Step(25_000, text="All is written."),
    ]
    with relay.client.api({"MAIN": steps}) as api:
        begun = relay.begin(*relay.items("a", "b"), *CHECK)
        with ended_at_last(begun):
            until(lambda: len(api.requests) == 4, begun)
            kill(begun)
        with ended_at_last(relay.relay("--resume", "job", extra=())) as resumed:
            until(lambda: "still runs" in resumed.stderr.readline(), resumed)
            gate.set()
            code, result, told = finish(resumed, SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["repeated"]) == (1, [])
    assert (len(api.requests), api.left()) == (6, {})


def test_an_interrupt_asks_the_session_to_hand_over(relay, name, gate):
    """It reads so with the result of its next tool call."""
    steps = [*job(name, gate), Step(24_000, text="b is written, and not claimed.")]
    with relay.client.api({"MAIN": steps}) as api:
        begun = relay.begin(*relay.items("a", "b"), *CHECK)
        with ended_at_last(begun):
            until(lambda: len(api.requests) == 4, begun)
            begun.send_signal(signal.SIGINT)
            until((relay.state / "subagents" / "job.1.request").exists, begun)
            gate.set()
            code, result, told = finish(begun, SECONDS)
    assert (code, result["work"]["killed"]) == (130, 0), told
    assert sum(text.count(hand_over_note()) for text in api.told("MAIN")[4]) == 1


def test_a_context_that_does_not_return_is_ended(relay, name, gate):
    """Beyond the critical rung it has its grace; what it did counts, and the next continues."""
    tokens = CRITICAL_TOKENS[name]
    steps = [
        Step(20_000, plan(("a", "pending"), ("b", "pending"), agent=name)),
        Step(21_000, touch("a")),
        Step(tokens, plan(("a", "completed"), ("b", "pending"), agent=name)),
        Step(tokens + 1_000, text="Never.", until=gate.is_set),
        *rest(name),
    ]
    with relay.client.api({"MAIN": steps}):
        begun = relay.begin(*relay.items("a", "b"), *CHECK, "--grace", "1s")
        code, result, told = finish(begun, SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 2), told
    assert (len(result["contexts"]), result["work"]["repeated"]) == (2, []), told
    assert result["contexts"][0]["end"] == "cut_off"
