"""The limits of a plan in `status`, `watch`, the page and the metrics: one reader, one number."""

import json
import time

import pytest
from helpers.planted_transcripts import SESSION, Machine, prompt, used
from helpers.program import run_process

from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, PlanLimits, plan_limit
from ultramon.state.plan_words import limit_words, plan_line
from ultramon.system.environment import state_directory

ACCOUNT = "/srv/dev/.claude"


def use(percent=62, week=41, *, account=ACCOUNT, directory=None, measured_ago=540):
    """Let a host have reported limits some minutes ago; return the account."""
    now = time.time()
    limits = [
        plan_limit(FIVE_HOURS, percent, now + 7_200, now - measured_ago),
        plan_limit(SEVEN_DAYS, week, now + 400_000, now - measured_ago),
    ]
    plans = PlanLimits(str(directory) if directory else state_directory())
    return plans.record("claude-code", account, limits, now)


def status(*arguments):
    done = run_process("status", *arguments, ULTRAMON_STATE_DIR=state_directory())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_json_has_every_limit_with_its_age():
    known = use()
    shown = json.loads(status("--json"))["plan"]
    assert shown == [
        {
            "account": ACCOUNT,
            "host": "claude-code",
            "limits": {limit.name: limit.to_json() for limit in known.limits},
        }
    ]
    five = shown[0]["limits"]["five_hour"]
    assert five.keys() == {"usedRatio", "resetsAt", "measuredAt"}
    assert five["usedRatio"] == 0.62


def test_a_report_begins_with_the_plan(tmp_path):
    """Of the user alone: not of files that are named, nor where names are left out."""
    machine = Machine(tmp_path)
    machine.write(SESSION, prompt("Look."), used("m1", 12_000))
    environ = machine.environ | {"ULTRAMON_STATE_DIR": state_directory(), "COLUMNS": "120"}
    known = use()
    lines = run_process("report", "--days", "36500", **environ).stdout.splitlines()
    assert lines[1] == f"  plan         {plan_line(known, time.time()).removeprefix('plan ')}"
    shown = json.loads(run_process("report", "--json", **environ).stdout)
    assert [one["account"] for one in shown["plan"]] == [ACCOUNT]
    for hidden in (("--anonymous",), (str(machine.projects),)):
        shown = json.loads(run_process("report", "--json", *hidden, **environ).stdout)
        assert shown["plan"] == []


def test_without_limits_the_member_is_empty():
    assert json.loads(status("--json"))["plan"] == []


def test_status_says_it_in_one_line():
    known = use()
    (line,) = [line for line in status().splitlines() if line.startswith("plan ")]
    assert line == plan_line(known, time.time())
    assert line.startswith(f"plan {ACCOUNT}: 5h 62 %, resets ")
    assert " · week 41 %, resets " in line
    assert line.endswith(" · seen 9 min ago")


def test_a_table_that_is_printed_once_has_the_line_too():
    use()
    done = run_process("watch", "--once", ULTRAMON_STATE_DIR=state_directory())
    assert f"plan {ACCOUNT}: 5h 62 %" in done.stdout


def test_watch_json_has_the_member_of_status():
    use()
    done = run_process("watch", "--json", "--once", ULTRAMON_STATE_DIR=state_directory())
    assert json.loads(done.stdout)["plan"] == json.loads(status("--json"))["plan"]


def test_each_account_has_its_line():
    use()
    use(5, account="/srv/dev/.codex")
    lines = [line for line in status().splitlines() if line.startswith("plan ")]
    assert [line.split(":")[0] for line in lines] == [
        f"plan {ACCOUNT}",
        "plan /srv/dev/.codex",
    ]


def test_a_reset_a_day_ahead_is_named_with_its_day():
    known = use()
    now = known.limits[0].resets_at - 60
    words = [limit_words(limit, now, utc=True) for limit in known.limits]
    assert words[0] == f"5h 62 %, resets {time.strftime('%H:%MZ', time.gmtime(now + 60))}"
    week = time.gmtime(known.limits[1].resets_at)
    assert words[1] == f"week 41 %, resets {time.strftime('%a %H:%MZ', week)}"


def test_a_name_with_control_characters_draws_nothing():
    use(account="/srv/\x1b[31mred")
    assert "\x1b" not in status()


@pytest.mark.parametrize("damage", [b"{", b"\x00" * 100])
def test_a_damaged_file_hides_its_account_alone(damage):
    use()
    use(5, account="/srv/dev/.codex")
    plans = PlanLimits(state_directory())
    path = plans._file("claude-code", ACCOUNT)
    with open(path, "wb") as file:
        file.write(damage)
    assert [one["account"] for one in json.loads(status("--json"))["plan"]] == ["/srv/dev/.codex"]
