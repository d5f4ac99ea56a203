"""The status line's other parts: plan, cost and cache, by real processes on the client's payloads.

No recording of a login with a plan is at hand: ``rate_limits`` has the form that the client's
documentation gives. Everything else is a payload that the client sent.
"""

import json
import subprocess
import sys
import time

import pytest
from helpers.child_of_session import Launched
from helpers.hooked_session import RECORDED, HookedSession
from helpers.program import run
from hosts.claude_code.test_status_line import payload, show

from ultramon.hosts.claude_code import statusline
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope
from ultramon.state.plan_limits import PlanLimits, plan_limit


@pytest.fixture
def session(tmp_path):
    return HookedSession(tmp_path)


def limits(five_hours=62, week=41, *, ahead=7_200):
    now = int(time.time())
    return {
        "five_hour": {"used_percentage": five_hours, "resets_at": now + ahead},
        "seven_day": {"used_percentage": week, "resets_at": now + 400_000},
    }


def accounts(session):
    return PlanLimits(str(session.state)).accounts(time.time())


def recorded():
    """A payload that the client sent after a reply, with cost and cache."""
    lines = (RECORDED / "statusline.jsonl").read_text().splitlines()
    return json.loads(lines[1])["stdin"]


def test_the_line_shows_every_part_in_its_order(session):
    told = recorded()
    told["rate_limits"] = limits()
    told["prompt_cache"]["expires_at"] = int(time.time()) + 200
    shown = show(session, told).rstrip("\n")
    five, week = (
        time.localtime(told["rate_limits"][name]["resets_at"])
        for name in ("five_hour", "seven_day")
    )
    assert shown.startswith("ctx █░░░░░░░░░ 10% 20k/200k")
    plan = f"5h 62% →{time.strftime('%H:%M', five)} · week 41% →{time.strftime('%a', week)}"
    assert f" · host $0.08 · {plan} · cache " in shown
    minutes, seconds = shown.rpartition(" ")[2].split(":")
    assert 100 < 60 * int(minutes) + int(seconds) <= 200


def test_without_a_plan_nothing_is_said_and_nothing_written(session):
    """A key of the API: the client leaves the member out."""
    assert "5h" not in show(session, payload(session, 20_000))
    assert not (session.state / "plan-limits").exists()


@pytest.mark.parametrize(
    "broken",
    [
        7, [], {}, {"five_hour": None}, {"five_hour": {"used_percentage": None}},
        {"five_hour": {"used_percentage": 5}}, {"five_hour": {"used_percentage": "5"}},
        {"five_hour": {"used_percentage": 5, "resets_at": "soon"}},
        {"five_hour": {"used_percentage": 5, "resets_at": 1}},
    ],
)  # fmt: skip
def test_what_is_no_limit_is_unknown(session, broken):
    shown = show(session, payload(session, 20_000) | {"rate_limits": broken})
    assert "10% 20k/200k" in shown
    assert "5h" not in shown
    assert accounts(session) == []


def test_the_client_alone_says_what_it_cost(session):
    told = payload(session, 20_000)
    assert "$" not in show(session, told)
    assert "$" not in show(session, told | {"cost": {"total_cost_usd": 0}})
    assert "host $3.10" in show(session, told | {"cost": {"total_cost_usd": 3.1}})


def test_a_cold_cache_is_not_counted_down(session):
    """The recorded caches have expired."""
    told = recorded()
    assert "cache" not in show(session, told)
    told["prompt_cache"] |= {"expires_at": int(time.time()) + 100, "warm": False}
    assert "cache" not in show(session, told)


def test_a_session_that_idles_shows_what_another_one_of_the_account_knows(session):
    """And its older numbers, which it draws again and again, overwrite nothing."""
    other = HookedSession(session.path, "other")
    session.reply(20_000, at=time.time() - 900)
    other.reply(30_000)
    old = payload(session) | {"rate_limits": limits(40)}
    show(session, old)
    assert "5h 62%" in show(other, payload(other) | {"rate_limits": limits(62)})
    assert "5h 62%" in show(session, old)
    (account,) = accounts(session)
    assert [one.percent for one in account.limits] == [62, 41]
    assert time.time() - account.limits[0].measured_at < 60


def test_the_limits_are_as_old_as_the_last_reply(session):
    session.reply(20_000, at=time.time() - 900)
    show(session, payload(session) | {"rate_limits": limits()})
    assert 899 < time.time() - accounts(session)[0].limits[0].measured_at < 960


def test_two_configurations_are_two_accounts(session):
    work = HookedSession(session.path, "work", CLAUDE_CONFIG_DIR=str(session.path / "work"))
    show(session, payload(session) | {"rate_limits": limits(62)})
    show(work, payload(work) | {"rate_limits": limits(5)})
    shown = [(one.account, one.limits[0].percent) for one in accounts(session)]
    assert sorted(shown) == [(str(session.home / ".claude"), 62), (str(session.path / "work"), 5)]


def test_a_reset_that_passes_is_dropped_from_the_line(session):
    """The client repeats the numbers of its last reply, which may be of a period that is over."""
    told = payload(session, 20_000) | {"rate_limits": limits(99, ahead=-1)}
    over, account = time.time() - 60, str(session.home / ".claude")
    before = [
        plan_limit("five_hour", 99, over + 59, over),
        plan_limit("other", 5, over + 900, over),
    ]
    PlanLimits(str(session.state)).record("claude-code", account, before, over)
    shown = show(session, told)
    assert "5h" not in shown
    assert "week 41%" in shown
    assert "other 5%" in shown


def test_eight_sessions_at_once_leave_one_sound_file(session):
    """Real processes, all at the same moment, each with what its own last reply said."""
    sessions = [HookedSession(session.path, f"s{number}") for number in range(8)]
    command = [sys.executable, "-I", "-S", statusline.__file__, str(session.installed)]
    running = []
    for number, one in enumerate(sessions):
        told = payload(one, 20_000) | {"rate_limits": limits(60 + number)}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=one.environ
        )
        running.append((process, json.dumps(told).encode()))
    for process, told in running:
        process.stdin.write(told)
        process.stdin.close()
    for process, _ in running:
        assert "% →" in process.stdout.read().decode()
        process.stdout.close()
        assert process.wait() == 0
    assert PlanLimits(str(session.state)).damaged() == []
    # One that did not get the lock in time brings its reading with the next drawing.
    show(sessions[7], payload(sessions[7]) | {"rate_limits": limits(67)})
    assert accounts(session)[0].limits[0].percent == 67
    assert not [text for text in session.failures() if text.startswith("limits of the plan")]


def test_a_damaged_file_is_set_aside_and_the_line_shown(session):
    told = payload(session, 20_000) | {"rate_limits": limits()}
    show(session, told)
    (path,) = (session.state / "plan-limits").glob("*.json")
    path.write_bytes(b"{")
    assert "5h 62%" in show(session, told)
    assert len(PlanLimits(str(session.state)).damaged()) == 1


def test_a_folder_that_refuses_keeps_nobody_from_the_context(session):
    (session.state / "plan-limits").write_text("in the way")
    assert "10% 20k/200k" in show(session, payload(session, 20_000) | {"rate_limits": limits()})
    (problem,) = session.failures()
    assert problem.startswith("limits of the plan: ")


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ("200", ["context", "cost", "5h", "week"]),
        ("76", ["context", "cost", "5h"]),
        ("60", ["context", "cost"]),
        ("30", ["context"]),
        ("1", ["context"]),
        ("wide", ["context", "cost", "5h", "week"]),
        ("", ["context", "cost", "5h", "week"]),
    ],
)
def test_parts_drop_from_the_right_where_the_terminal_is_narrow(session, columns, parts):
    """What is left fits; the context is shown in any case. Colours take no room."""
    told = payload(session, 150_000) | {"rate_limits": limits(), "cost": {"total_cost_usd": 3.1}}
    shown = show(session, told, COLUMNS=columns).rstrip("\n")
    names = {"ctx": "context", "host": "cost", "5h": "5h", "week": "week"}
    found = [names[text.split()[0]] for text in shown.split(" · ") if text.split()[0] in names]
    assert found == parts


@pytest.mark.parametrize(
    ("chosen", "starts"),
    [
        (["plan", "context"], ["5h", "week", "ctx"]),
        (["context"], ["ctx"]),
        (["cache", "plan"], ["5h", "week"]),
    ],
)
def test_parts_and_order_are_one_setting(session, chosen, starts):
    told = payload(session, 20_000) | {"rate_limits": limits(), "cost": {"total_cost_usd": 3.1}}
    session.freeze(status_line_parts=chosen)
    shown = show(session, told)
    assert [text.split()[0] for text in shown.split(" · ")] == starts


def spent(session, *budgets, at=None):
    """Let a process have looked just now; a budget is a name, dollars and a scope."""
    now = time.time()
    BudgetReadings(str(session.state)).write(
        BudgetReading(
            name,
            scope,
            period="day",
            period_key="2026-11-26",
            starts_at=now - 3_600,
            ends_at=now + 3_600,
            unit="usd",
            limit=20,
            spent=usd,
            is_whole=True,
            levels=(80, 100),
            level=None,
            empties_at=None,
            is_enforced=False,
            measured_at=now if at is None else at,
        )
        for name, usd, scope in budgets
    )


def test_a_budget_is_shown_between_cost_and_plan(session):
    told = payload(session, 20_000) | {"rate_limits": limits(), "cost": {"total_cost_usd": 3.1}}
    spent(session, ("daily", 11.4, Scope()))
    assert " · host $3.10 · today $11.40 of 20 · 5h " in show(session, told)


def test_only_budgets_that_count_the_session_are_shown(session):
    """One for everything needs no name while it is the only one."""
    told = payload(session, 20_000)
    here, elsewhere = Scope(project=str(session.project)), Scope(project="/srv/shop")
    spent(session, ("daily", 11.4, Scope()), ("here", 3.0, here), ("shop", 2.0, elsewhere))
    shown = show(session, told)
    assert " · today $11.40 of 20 · here today $3.00 of 20" in shown
    assert "shop" not in shown
    spent(session, ("daily", 1.0, Scope()), ("more", 2.0, Scope(agent="sess*")), ("x", 1, Scope()))
    shown = show(session, told)
    assert "daily today $1.00 of 20 · more today $2.00 of 20 · x today $1.00 of 20" in shown


def test_a_budget_that_no_process_looks_at_is_not_shown(session):
    spent(session, ("daily", 11.4, Scope()), at=time.time() - 301)
    assert "today" not in show(session, payload(session, 20_000))


def test_the_fullest_of_the_running_subagents_is_named(session):
    """And how many run; one that has ended is not counted."""
    session.tool(20_000)
    told = payload(session)
    assert "sub" not in show(session, told)
    for number, tokens in enumerate((30_000, 176_000, 40_000)):
        name = f"a{number}"
        session.call("SubagentStart", name, agent_type="scout")
        session.reply(tokens, "toolu_1", agent=name)
        session.call("PostToolUse", name, tool_name="Bash", tool_use_id="toolu_1")
    shown = show(session, told)
    assert " · sub scout 88% · 3 running" in shown
    session.call("SubagentStop", "a1", last_assistant_message="")
    assert " · sub scout 20% · 2 running" in show(session, told)


READS = """
import sys
seen = []
sys.addaudithook(lambda event, found: event in ("open", "os.listdir") and seen.append(found[0]))
from ultramon.hosts.claude_code.status_line import main
main(["status line", sys.argv[1]])
print(*seen, sep="\\n", file=sys.stderr)
"""
"""The status line, followed by what it has read."""


def test_a_part_that_is_not_shown_is_not_read(session):
    """The line is drawn every ten seconds, also where there are many agents."""
    session.call("SubagentStart", "a1", agent_type="scout")
    spent(session, ("daily", 11.4, Scope()))
    told = payload(session, 20_000) | {"rate_limits": limits()}
    show(session, told)

    def read(*chosen):
        session.freeze(status_line_parts=[*chosen])
        ran = subprocess.run(
            [sys.executable, "-c", READS, str(session.installed)],
            input=json.dumps(told),
            capture_output=True,
            encoding="utf-8",
            env={"NO_COLOR": "1"} | session.environ,
            check=True,
        )
        folder = f"{session.state}/"
        lines = ran.stderr.splitlines()
        return ran.stdout, {one.removeprefix(folder) for one in lines if one.startswith(folder)}

    shown, files = read("context")
    assert shown.startswith("ctx ")
    others = {"subagents", "subagents/session.a1.json"}
    assert not others & files
    assert not any("budget" in one for one in files)
    _, files = read("context", "subagents", "budget")
    assert others <= files
    assert any("budget" in one for one in files)


def test_subagents_that_brought_no_text_are_counted(session):
    """Behind those that run, and alone where none does; the line of tmux counts them too."""
    session.tool(20_000)
    told = payload(session)
    children = [Launched(session, f"a{number}") for number in range(3)]
    for child in children:
        child.work(30_000)
    children[0].returned("Seen.")
    assert "came back empty" not in show(session, told)
    children[1].returned()
    assert " · sub general-purpose 15% · 1 came back empty" in show(session, told)
    children[2].returned()
    assert " · sub 2 came back empty" in show(session, told)
    line = run("watch", "--format", "tmux", "--state-dir", session.state).stdout
    assert line.rstrip().endswith("2 came back empty")
    session.call("SessionEnd", reason="other")
    line = run("watch", "--format", "tmux", "--state-dir", session.state).stdout
    assert "came back empty" not in line


def test_nothing_new_writes_the_file_once(session):
    """The client draws the line every ten seconds."""
    told = payload(session, 20_000) | {"rate_limits": limits()}
    show(session, told)
    (path,) = (session.state / "plan-limits").glob("*.json")
    before = path.stat().st_ino
    for _ in range(3):
        show(session, told)
    assert path.stat().st_ino == before
