"""The real client with the login of a plan: what it says of the plan's limits is what we show."""

import json
import re
import time

import pytest
from helpers.program import run
from helpers.requirements import require_tool

from real_client.api import Reply, marked
from real_client.client import until

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
