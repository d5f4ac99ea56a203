"""A relay looks at the user's plan before a context begins: the program, with the real Codex."""

import signal
import time

import pytest
from helpers.client_relay import begin_project, touch
from helpers.codex_client import Step
from helpers.program import run_process
from helpers.relayed import finish
from helpers.waiting import until

from ultramon.cli.exit_codes import ExitCode
from ultramon.relay.choices import RelayChoices
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, PlanLimits, plan_limit

CHECK = ("--verify", "test -e {item}")
SECONDS = 300
WAITS = "the next context begins after its reset at"


@pytest.fixture
def relay(tmp_path):
    return begin_project("codex", tmp_path)


def use(relay, percent, ahead, *, name=FIVE_HOURS, account=None):
    """Let a session of the person have reported a limit; return when it resets."""
    now = time.time()
    limit = plan_limit(name, percent, now + ahead, now)
    account = str(account or relay.client.configuration)
    relay.state.mkdir(mode=0o700, exist_ok=True)
    PlanLimits(str(relay.state)).record("codex", account, [limit], now)
    return now + ahead


def steps():
    return [Step(20_000, touch("a")), Step(21_000, text="a is written.")]


def test_it_waits_for_the_reset_and_then_begins(relay):
    """85 % are used and 20 % are the person's: nothing is asked of the provider before."""
    resets_at = use(relay, 85, 15)
    with relay.client.api({"MAIN": steps()}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--leave-plan", "20%"), SECONDS
        )
    assert (code, api.left()) == (0, {}), told
    assert told.count(WAITS) == 1
    assert "has used 85 % of its five_hour limit, 20% of it are yours" in told
    assert time.time() > resets_at
    assert len(result["contexts"]) == 1


@pytest.mark.parametrize(
    "which", ["below", "another account", "another limit below", "of another model"]
)
def test_what_leaves_enough_holds_nothing_back(relay, which):
    if which == "another account":
        use(relay, 99, 7_200, account="/srv/dev/.codex")
    elif which == "below":
        use(relay, 79, 7_200)
    elif which == "of another model":
        use(relay, 99, 7_200, name="codex_other.five_hour")
    else:
        use(relay, 10, 400_000, name=SEVEN_DAYS)
    with relay.client.api({"MAIN": steps()}) as api:
        code, _, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--leave-plan", "20%"), SECONDS
        )
    assert (code, api.left()) == (0, {}), told
    assert WAITS not in told


def test_a_reset_that_is_too_far_stops_it_before_anything_begins(relay):
    """As a budget that is used up, and the run can continue later."""
    use(relay, 100, 7 * 3_600)
    with relay.client.api({"MAIN": steps()}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--wait-at-most", "6h"), SECONDS
        )
        assert api.requests == []
        assert (code, result["contexts"]) == (ExitCode.BUDGET, []), told
        assert "has used 100 % of its five_hour limit" in result["stop"]["words"]
        assert result["stop"]["words"].endswith("later than in 6 h")
        for path in (relay.state / "plan-limits").iterdir():
            path.unlink()
        code, result, told = finish(relay.relay("--resume", "job"), SECONDS)
    assert (code, api.left()) == (0, {}), told


def test_without_a_share_of_the_person_only_a_limit_that_is_reached_counts(relay):
    use(relay, 99, 7_200)
    with relay.client.api({"MAIN": steps()}):
        code, _, told = finish(relay.begin(*relay.items("a"), *CHECK), SECONDS)
    assert (code, WAITS in told) == (0, False), told


def test_a_wait_ends_by_ctrl_c(relay):
    """Nothing was begun, so nothing is waited for."""
    use(relay, 100, 7_200)
    with relay.client.api({"MAIN": steps()}) as api:
        process = relay.begin(*relay.items("a"), *CHECK)
        line = ""
        while WAITS not in line:
            line = process.stderr.readline()
            assert line, "it ended without a word"
        process.send_signal(signal.SIGINT)
        code, result, told = finish(process, SECONDS)
    assert (code, result["contexts"], api.requests) == (ExitCode.INTERRUPTED, [], []), told


def test_a_wait_that_another_session_makes_needless_is_over(relay):
    """The numbers are read again and again: the next period begins below."""
    use(relay, 100, 7_200)
    with relay.client.api({"MAIN": steps()}) as api:
        process = relay.begin(*relay.items("a"), *CHECK)
        while WAITS not in process.stderr.readline():
            assert process.poll() is None
        use(relay, 1, 18_000)
        until(lambda: api.requests, process)
        code, _, told = finish(process, SECONDS)
    assert code == 0, told


@pytest.mark.parametrize("wrong", ["1.5", "100%", "-1", "some", ""])
def test_a_share_that_makes_no_sense_is_refused(wrong):
    done = run_process("relay", "goal", "--leave-plan", wrong)
    assert done.returncode == 2
    assert "no whole percentage from 0% to 99%" in done.stderr


def test_choices_of_an_earlier_version_leave_nothing_and_wait():
    choices = RelayChoices._decode(
        {"goal": "g", "cwd": "/", "rules": [], "items": None, "arguments": []}
    )
    assert (choices.leave_plan, choices.wait_at_most_seconds) == (0.0, None)


def test_a_limit_that_is_met_too_far_from_its_reset_stops_the_run(relay):
    """The context has worked, and hands over; the run can continue after the reset."""
    error = {
        "type": "usage_limit_reached",
        "message": "The usage limit has been reached",
        "plan_type": "plus",
        "resets_at": int(time.time()) + 7 * 3_600,
    }
    met = [Step(20_000, touch("b")), Step(21_000, error=error, status=429)]
    with relay.client.api({"MAIN": met}) as api:
        code, result, told = finish(
            relay.begin(*relay.items("a"), *CHECK, "--wait-at-most", "6h"), SECONDS
        )
    assert (code, api.left()) == (ExitCode.BUDGET, {}), told
    assert result["stop"]["words"].startswith("the usage limit of codex is met, and resets at ")
    assert len(result["contexts"]) == 1
