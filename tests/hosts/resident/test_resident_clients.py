"""Real clients whose hooks ask a resident: it answers, and its end or the launcher's harms none."""

import json
import os
import signal

import pytest
from helpers import codex_client, gemini_client, qwen_client
from helpers.qwen_session import OLD
from helpers.resident_session import settle, until
from helpers.scripted_model import Step

from ultramon.hosts.resident.place import Place

pytestmark = pytest.mark.timeout(600)  # each round of tools starts several processes

NAMES = ("codex", "gemini", "qwen")
HIGH_TOKENS = {"codex": 180_000, "gemini": 734_000, "qwen": 62_000}
"""Over the first rung of the client's window, and below the second."""
EACH = pytest.mark.parametrize(
    "client", ["codex", *(pytest.param(n, marks=pytest.mark.exhaustive) for n in NAMES[1:])],
    indirect=True,
)  # fmt: skip


@pytest.fixture
def client(request, tmp_path):
    """A client into which ultramon was installed."""
    if request.param == "codex":
        client = codex_client.Client(tmp_path)
    elif request.param == "gemini":
        client = gemini_client.Client(tmp_path)
        client.settings.write_text(json.dumps(gemini_client.SETTINGS))
    else:
        client = qwen_client.Client(tmp_path, OLD)
        client.settings.write_text(json.dumps(qwen_client.SETTINGS))
    done = client.ultramon("install", client.host, "--force")
    assert done.returncode == 0, done.stderr
    client.place = Place(str(client.states), client.variables)
    return client


def run(client, act=lambda: None):
    """Run a session over a rung, with an act before its third reply; return the scripted model."""
    low, high = 20_000, HIGH_TOKENS[client.host]

    def acted():
        act()
        return True

    # A call that repeats itself is taken for a loop.
    tokens = (low, low, low, low, high, high + 500)
    steps = [Step(one, f"echo {number}") for number, one in enumerate(tokens)]
    steps[2].until = acted
    prompt = ("-p", "[[MAIN]] work") if client.host == "gemini" else ("[[MAIN]] work",)
    with client.api({"MAIN": [*steps, Step(high + 1_000)]}) as api:
        done = client.run(*prompt)
        settle(client.place)
        api.facts = client.place.ask()
    assert (done.returncode, api.left()) == (0, {}), done.stderr
    return api


@EACH
def test_it_answers_the_calls_and_the_rung_is_told_once(client):
    """Those far from the rung before their reading is stored."""
    api = run(client)
    assert sum(map(len, api.told("MAIN"))) == 1
    assert api.facts["atOnce"] > 0
    assert api.facts["refused"] == 0
    (record,) = client.records()
    assert record.estimated_tokens == HIGH_TOKENS[client.host] + 1_000
    assert (record.outcome, record.active) == ("completed", False)
    assert client.failures() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("client", NAMES, indirect=True)
def test_its_end_halfway_costs_no_warning(client, number):
    """Killed or stopped while the model writes its reply."""

    def disturb():
        os.kill(until(client.place.running, "no resident runs")["pid"], number)

    api = run(client, disturb)
    assert sum(map(len, api.told("MAIN"))) == 1
    (record,) = client.records()
    assert record.estimated_tokens == HIGH_TOKENS[client.host] + 1_000


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", NAMES, indirect=True)
def test_a_launcher_that_is_gone_lets_the_client_go_on(client):
    """The shell ends with 127, and the session to its end."""
    launcher = client.states / f"{client.host}.ultramon-hook"
    api = run(client, launcher.unlink)
    assert not any(api.told("MAIN"))
