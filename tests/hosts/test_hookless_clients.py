"""Real clients without hooks: what they write is read as it was."""

import json

import pytest
from helpers.hookless_clients import Kilo, KimiCode
from helpers.scripted_model import Step

pytestmark = pytest.mark.timeout(400)
LAUNCH = {
    "kilo": ("task", {"description": "part", "prompt": "[[SUB]] part", "subagent_type": "general"}),
    "kimi": ("Agent", {"description": "part", "prompt": "[[SUB]] part", "subagent_type": "coder"}),
}
TEXT = "The part is done, and what was found is that the word in the file is alpha. " * 4


@pytest.mark.parametrize("kind", [Kilo, KimiCode], ids=["kilo", "kimi"])
def test_a_session_and_its_subagent_are_read_by_their_own_numbers(tmp_path, kind):
    """Replies of the scripted model, and no others."""
    client = kind(tmp_path)
    main = [Step(30_000, LAUNCH[client.host]), Step(60_000, "echo one"), Step(75_000, text="Done.")]
    sub = [Step(12_000, "echo part"), Step(15_000, text=TEXT)]
    with client.api({"MAIN": main, "SUB": sub}) as api:
        done = client.run("[[MAIN]] do the work")
        assert (done.returncode, api.left()) == (0, {}), done.stderr
    listed = client.ultramon("status", "--from-transcripts", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    agents = json.loads(listed.stdout)["agents"]
    found = {one["currentTokens"]: "." in one["agentId"] for one in agents}
    assert found == {75_005: False, 15_005: True}
    assert {(one["host"], one["model"], one["contextLimit"]) for one in agents} == {
        (client.host, "fake-1", None)
    }
    assert {one["project"] for one in agents} == {str(client.project)}
    report = json.loads(client.ultramon("report", "--json").stdout)
    assert (report["sessions"], report["subagents"], report["subagentsWithText"]) == (1, 1, 1)
    spent = report["spent"]
    assert spent["inputTokens"] == 30_000 + 60_000 + 75_000 + 12_000 + 15_000
    assert spent["outputTokens"] == 5 * 5
