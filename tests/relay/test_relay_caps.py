"""The caps of a relay with the real clients: no context sends a request behind its last token."""

import pytest
from helpers.client_relay import begin_project, touch
from helpers.relayed import finish
from helpers.scripted_model import Step

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
EACH = pytest.mark.parametrize(
    "name",
    [
        *("codex", "gemini", "qwen"),
        *(pytest.param(one, marks=pytest.mark.exhaustive) for one in ("copilot", "opencode")),
    ],
)
STEPS = [Step(20_000 + number, touch(f"made-{number}")) for number in range(20)]
"""A context that never comes to an end."""


@pytest.fixture
def relay(tmp_path, name):
    """A project, and a client."""
    return begin_project(name, tmp_path)


def asked(api):
    """How often a reply was asked for, without titles and summaries."""
    return sum(name == "MAIN" for name, _ in api.requests)


def spent(context):
    return sum(context["spent"].values())


@EACH
def test_tokens_are_a_cap_that_one_reply_passes(relay, name):
    """The third reply spends the last token: no fourth one is asked for, and no other context."""
    with relay.client.api({"MAIN": STEPS}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a", "b"), *CHECK, "--max-tokens", "50k"), SECONDS
        )
    assert (code, result["stop"]["kind"]) == (5, "budget"), told
    assert (asked(api), len(result["contexts"])) == (3, 1)
    assert spent(result["contexts"][0]) >= 60_000
    assert "of 50k tokens are spent" in result["stop"]["words"]
    assert result["work"]["killed"] == 0, told
    assert relay.client.failures() == []


@EACH
def test_a_run_that_has_spent_its_tokens_begins_no_context(relay, name):
    """Resumed with more, it continues with what is left."""
    with relay.client.api({"MAIN": STEPS}) as api:
        finish(relay.begin(*relay.items("a"), *CHECK, "--max-tokens", "30k"), SECONDS)
        before = asked(api)
        code, result, _ = finish(relay.relay("--resume", "job"), SECONDS)
        assert (code, result["stop"]["kind"], asked(api)) == (5, "budget", before)
    with relay.client.api({"MAIN": [Step(20_000, touch("a")), Step(21_000)]}):
        code, result, told = finish(relay.relay("--resume", "job", "--max-tokens", "1M"), SECONDS)
    assert (code, result["work"]["counts"]["verified"]) == (0, 1), told


USD_PER_MILLION = {"codex": 1.75, "gemini": 1.25}
"""List price of the input of the models that the two are run with."""


@pytest.mark.parametrize("name", USD_PER_MILLION)
def test_dollars_are_a_cap_though_the_client_names_no_price(relay, name):
    """A cap of two replies and a half is passed by the third one."""
    usd = USD_PER_MILLION[name] / 1e6
    with relay.client.api({"MAIN": STEPS}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--max-usd", f"{50_000 * usd}"), SECONDS
        )
    assert (code, result["stop"]["kind"]) == (5, "budget"), told
    assert asked(api) == 3
    assert result["contexts"][0]["list_usd"] == pytest.approx(60_003 * usd, rel=0.01)


@pytest.mark.parametrize("name", ["codex"])
def test_a_cap_holds_for_all_contexts_together(relay, name):
    """Of two that work at the same time each passes its share by one reply at most."""
    with relay.client.api({"MAIN": STEPS * 2}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a", "b"), *CHECK, "--workers", "2", "--max-tokens", "200k"),
            SECONDS,
        )
    assert (code, result["stop"]["kind"]) == (5, "budget"), told
    # A third one may have begun with what the first one to end has left.
    assert len(result["contexts"]) >= 2
    each = [spent(context) for context in result["contexts"]]
    # Each is ended before its next request, once its share is spent.
    assert 200_000 <= sum(each) < 200_000 + 2 * 21_000, (each, asked(api))
