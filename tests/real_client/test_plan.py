"""The real client with the login of a plan: what it says of the plan's limits is what we show."""

import json
import re
import time

import pytest
from helpers.program import run
from helpers.requirements import require_tool

from real_client.api import Reply, marked
from real_client.client import until
from real_client.relaying import GOAL, RUN, RelayedProject, complete, create, touch

pytestmark = pytest.mark.real_client


def limits(used_5h, used_7d, resets_at):
    """The provider's headers; a share is 0.0-1.0."""
    prefix = "anthropic-ratelimit-unified"
    return (
        (f"{prefix}-status", "allowed"),
        (f"{prefix}-representative-claim", "five_hour"),
        (f"{prefix}-reset", str(resets_at)),
        (f"{prefix}-5h-status", "allowed"),
        (f"{prefix}-5h-utilization", str(used_5h)),
        (f"{prefix}-5h-reset", str(resets_at)),
        (f"{prefix}-7d-status", "allowed"),
        (f"{prefix}-7d-utilization", str(used_7d)),
        (f"{prefix}-7d-reset", str(resets_at + 400_000)),
    )


def test_a_plan_is_shown_where_the_client_tells_it(installed, api, states):
    """In its status line, and by `status`, once for the account."""
    require_tool("tmux")
    resets_at = int(time.time()) + 7_200
    api.headers = limits(0.42, 0.17, resets_at)
    installed.log_in_to_plan()
    api.play(Reply(22_000, "Done."))
    with installed.terminal() as screen:
        screen.wait_for("❯")
        screen.enter(marked("work"))
        screen.wait_for("Done.")
        reset = time.strftime("%H:%M", time.localtime(resets_at))
        screen.wait_for(f"5h 42% →{reset}")

        def plans():
            found = run("status", "--json", "--state-dir", states.directory)
            return json.loads(found.stdout)["plan"]

        (plan,) = until(plans, "the plan is stored")
    assert plan["host"] == "claude-code"
    assert {name: one["usedRatio"] for name, one in plan["limits"].items()} == {
        "five_hour": 0.42, "seven_day": 0.17,
    }  # fmt: skip
    shown = run("status", "--all", "--state-dir", states.directory).stdout
    assert re.search(r"5h 42\s?%", shown)


def test_a_relay_learns_the_plan_from_its_own_contexts(client, api, tmp_path):
    """No status line is drawn there; the next context waits for the reset, or the run stops."""
    project = RelayedProject(client, tmp_path)
    api.headers = limits(0.9, 0.3, int(time.time()) + 7_200)
    client.log_in_to_plan()
    api.play(create(20_000, "a", "b"), touch(21_000, "a"), complete(22_000, 1), Reply(23_000, "a."))
    code, result, told = project.run(
        GOAL, "--run", RUN, *project.items("a", "b"), "--verify", "test -e {item}",
        "--leave-plan", "20%", "--wait-at-most", "1h",
    )  # fmt: skip
    assert code != 0
    assert len(result["contexts"]) == 1, told
    assert re.search(r"has used 90 % of its five_hour limit", told + str(result))
