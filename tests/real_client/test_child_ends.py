"""A subagent that came back with little: the conversation that launched it says why, once."""

import json
import shlex
import sys
import threading

import pytest

from real_client.api import Call, Refusal, Reply, bash, marked
from real_client.client import finish

pytestmark = pytest.mark.real_client

TOLD = "[ultramon] Subagent "
STOP = "import json; print(json.dumps({'continue': False, 'stopReason': 'the budget is used up'}))"


def launch(tokens, *, in_background):
    work = {
        "description": "count the files", "prompt": marked("count", "scout"),
        "subagent_type": "general-purpose", "run_in_background": in_background,
    }  # fmt: skip
    return Reply(tokens, calls=(Call("Agent", work),))


def told(api):
    """The numbers of the requests in which it is new, and its texts."""
    fresh = {number: turn.fresh(TOLD) for number, turn in enumerate(api.turns())}
    return {number: texts for number, texts in fresh.items() if texts}


@pytest.mark.parametrize(
    ("way", "in_background"),
    [
        ("full", True),
        ("refused", False),
        ("stopped", True),
        pytest.param("full", False, marks=pytest.mark.exhaustive),
        pytest.param("refused", True, marks=pytest.mark.exhaustive),
        pytest.param("stopped", False, marks=pytest.mark.exhaustive),
    ],
)
def test_the_next_request_says_how_a_subagent_ended(
    installed, api, states, tmp_path, way, in_background
):
    """It ended at its limit, its request was refused, or a hook ended it: said once, with facts."""
    api.play(launch(20_000, in_background=in_background), Reply(21_000, "It looks."))
    if in_background:
        api.play(Reply(22_000, "It has ended."))
    ends = {
        "full": Reply(161_000, "Seen half."),
        "refused": Refusal("prompt is too long: 210000 tokens > 200000 maximum"),
        "stopped": bash(161_000, "echo 3"),
    }
    api.play(bash(8_000, "echo 1"), bash(160_000, "echo 2"), ends[way], conversation="scout")
    options = []
    if way == "stopped":
        # As somebody's hook that ends whoever has used up a budget.
        once = f"grep -q 'echo 3' && exec {shlex.join([sys.executable, '-c', STOP])} || true"
        hook = {"type": "command", "command": once}
        hooks = {"PostToolUse": [{"matcher": "Bash", "hooks": [hook]}]}
        options = ["--settings", json.dumps({"hooks": hooks})]
    environment = {"DISABLE_AUTO_COMPACT": "1"} if way == "refused" else {}
    session = installed.run(marked("have somebody count"), *options, **environment)
    assert session.result["is_error"] is False
    ((number, (text,)),) = told(api).items()
    assert number == (2 if in_background else 1)
    assert api.turns()[-1].count(TOLD) == 1
    tokens = 160_000 if way == "refused" else 161_000
    limit = 177_000 if way == "refused" else 200_000
    assert f"Its context window held {tokens:,} of {limit:,} tokens" in text
    assert {
        "full": ") ended. ",
        "refused": ") failed: Prompt is too long",
        "stopped": ') did not finish: stopped by a hook that said "the budget is used up"; it ',
    }[way] in text
    (child,) = (one for name, one in states.all().items() if name != session.session_id)
    assert child.outcome == {"full": "completed", "refused": "failed", "stopped": "cancelled"}[way]
    assert f"{child.agent_id}.json" in text


def test_a_subagent_that_its_launcher_stopped_has_ended(installed, api, states):
    """The client sends no event of its own; the conversation is given what was reached."""
    gates = [threading.Event() for _ in range(2)]
    api.play(launch(20_000, in_background=True), bash(21_000, "echo a", gate=gates[0]))
    api.play(
        bash(8_000, "echo 1"), bash(90_000, "echo 2"), bash(91_000, "echo 3", gate=gates[1]),
        conversation="scout",
    )  # fmt: skip
    process = installed.start(marked("have somebody count"))
    try:
        api.wait_for_turns(3, "scout")
        name = api.turns("scout")[0].headers["x-claude-code-agent-id"]
        api.play(Reply(22_000, calls=(Call("TaskStop", {"task_id": name}),)))
        api.whenever(Reply(23_000, "Stopped."))
    finally:
        gates[0].set()
        session = finish(process)
        gates[1].set()
    ((text,),) = told(api).values()
    assert text.count(f"Subagent {name} ") == 1
    assert ") did not finish: interrupted; it returned no text. " in text
    child = states.all()[f"{session.session_id}.{name}"]
    assert (child.outcome, child.exit) == ("cancelled", {"reason": "interrupted"})
