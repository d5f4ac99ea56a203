"""A budget in `status`, `watch`, the doctor and the metrics: real settings and programs."""

import json
import os
import re
import subprocess
import time
import urllib.request
from functools import partial

import pytest
from helpers.hooked_session import HookedSession
from helpers.looking_programs import looking_programs
from helpers.planted_transcripts import SESSION, Machine, reply
from helpers.program import PROGRAM, as_a_process, environment, run_process
from helpers.waiting import until

from ultramon.backends.level_watch import LevelWatch
from ultramon.backends.local.backend import LocalBackend
from ultramon.recordings.budget_look import BudgetLook
from ultramon.routing import Inbox
from ultramon.state.budget_readings import BudgetReadings
from ultramon.state.event_words import event_words
from ultramon.state.events import BudgetEvent, parse_event
from ultramon.system.timestamps import format_time

REPLY = {"input_tokens": 100_000, "output_tokens": 0}
"""$0.30 at the list price of Sonnet 4.5."""


class Home:
    """A person's machine with settings, transcripts and a state directory."""

    def __init__(self, path):
        self.machine = Machine(path)
        self.state = str(path / "state")
        os.mkdir(self.state, 0o700)
        self.config = path / "own.toml"
        self.environ = {
            **self.machine.environ,
            "ULTRAMON_STATE_DIR": self.state,
            "ULTRAMON_CONFIG": str(self.config),
            "HOME": str(path),
        }
        self._count = 0

    def configure(self, text):
        self.config.write_text(text)

    def spend(self, times=1):
        """Let a session have had so many replies just now."""
        now = format_time(time.time())
        for _ in range(times):
            self._count += 1
            self.machine.write(
                SESSION, reply(f"m{self._count}", REPLY, [], timestamp=now), project="/srv/shop"
            )

    def look(self):
        """Look as a process would that runs."""
        backend = LocalBackend(self.state)
        before = dict(os.environ)
        os.environ.update(self.environ)
        try:
            return BudgetLook(self.state, backend, self.environ)(time.time())
        finally:
            os.environ.clear()
            os.environ.update(before)
            backend.close()

    def run(self, *arguments):
        done = run_process(*arguments, **self.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def readings(self):
        return {one.name: one for one in BudgetReadings(self.state).read(time.time())}


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def daily(usd, more=""):
    # Without a period no midnight lies between the spending and the look of a test.
    return f'[budgets.daily]\nlimit_usd = {usd}\nperiod = "none"\n{more}\n'


def announced(home):
    backend = LocalBackend(home.state)
    try:
        events = backend.events().events
        return [one for one in events if one["type"] == "budget_threshold_reached"]
    finally:
        backend.close()


def test_programs_on_one_directory_announce_each_level_once(home):
    """Two watches, a page and a server, each of which reads the transcripts by itself."""
    home.configure(daily(1, 'notify = "ops"'))
    home.spend(3)
    with looking_programs(environment(**home.environ)) as running:
        for process in running:
            until(lambda: announced(home), process)
        home.spend(2)
        until(lambda: len(announced(home)) > 1, running[0])
    events = announced(home)
    assert [one["level"] for one in events] == ["warning", "critical"]
    assert [one["key"] for one in events] == [f"budget:daily:all:{one['level']}" for one in events]
    found = parse_event(events[0])
    assert isinstance(found, BudgetEvent)
    assert (found.spent_usd, found.limit_usd, found.limit_tokens) == (0.9, 1.0, None)
    assert event_words(events[0]) == "warning, 90 % of daily spent, $0.90 of 1.00"
    backend = LocalBackend(home.state)
    notices = Inbox("ops", backend=backend).receive(10)
    backend.close()
    assert [one.text for one in notices] == [
        "Budget daily: $0.90 of 1, 90 % (warning, from 80 %).",
        "Budget daily: $1.50 of 1, 150 %, used up (critical, from 100 %).",
    ]
    assert "90 % of daily spent" in home.run("events")


def test_status_and_watch_show_one_number(home):
    home.configure(daily(1) + '[budgets.shop]\nlimit_tokens = 200_000\nproject = "/srv/shop"\n')
    home.spend()
    home.look()
    shown = json.loads(home.run("status", "--json"))["budgets"]
    assert [(one["name"], one.get("spentUsd"), one.get("spentTokens")) for one in shown] == [
        ("daily", 0.3, None), ("shop", None, 100_000),
    ]  # fmt: skip
    assert shown[1]["scope"] == {"project": "/srv/shop"}
    assert json.loads(home.run("watch", "--json", "--once"))["budgets"] == shown
    lines = ["budget daily: $0.30 of 1, 30 %", "budget shop: today 100k of 200k tokens, 50 %"]
    for command in (("status",), ("watch", "--once")):
        printed = home.run(*command).splitlines()
        assert [line for line in printed if line.startswith("budget ")] == lines


def test_the_report_begins_with_what_is_spent(home):
    """It looks itself where no process does, and shows others nothing of it."""
    home.configure(daily(1) + '[budgets.shop]\nlimit_tokens = 200_000\nproject = "/srv/shop"\n')
    home.spend()
    lines = home.run("report").splitlines()
    assert lines[1].split(maxsplit=1) == [
        "budgets", "daily: $0.30 of 1, 30 % · shop: today 100k of 200k tokens, 50 %",
    ]  # fmt: skip
    home.spend()
    assert home.run("report").splitlines()[1] == lines[1], "the readings of a look that is recent"
    shown = json.loads(home.run("report", "--json"))["budgets"]
    assert [(one["name"], one["usedRatio"]) for one in shown] == [("daily", 0.3), ("shop", 0.5)]
    assert json.loads(home.run("report", "--json", "--anonymous"))["budgets"] == []
    assert "budgets" not in home.run("report", "--anonymous")
    assert "budgets" not in home.run("report", str(home.machine.projects))


@pytest.mark.parametrize(
    ("settings", "variables", "named"),
    [
        ("[budgets.daily]\nlimit_usd = -1\n", {}, "budgets.daily.limit_usd=-1"),
        (daily(1, 'prices = "/gone.toml"'), {}, "/gone.toml"),
        (daily(1), {"ULTRAMON_BACKEND": "nowhere:"}, "nowhere:"),
    ],
    ids=["setting", "prices", "store"],
)
def test_a_report_is_shown_without_budgets_that_cannot_be_read(home, settings, variables, named):
    """What is wrong is said beside it; without a budget a store that is away is no problem."""
    home.configure(settings)
    home.spend()
    done = run_process("report", **home.environ | variables)
    assert done.returncode == 0, done.stderr
    assert "1 session" in done.stdout
    assert "budgets" not in done.stdout
    assert "Warning: what is spent of the budgets is not shown: " in done.stderr
    assert named in done.stderr
    shown = run_process("report", "--json", **home.environ | variables)
    assert json.loads(shown.stdout)["budgets"] == []
    home.configure("")
    assert "Warning" not in run_process("report", **home.environ | variables).stderr


def test_a_terminal_of_ascii_gets_words_for_every_sign(home):
    """A bound, a separator and a range; columns hold, as each sign is as wide as its substitute."""
    home.configure(daily(1) + '[budgets.shop]\nlimit_tokens = 200_000\nproject = "/srv/shop"\n')
    home.spend()
    unpriced = reply("x1", REPLY, [], timestamp=format_time(time.time()))
    unpriced["message"]["model"] = "a-model-without-a-price"
    home.machine.write(SESSION, unpriced, project="/srv/shop")
    ascii_only = home.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    for command in (("report",), ("report", "--by", "day"), ("status",)):
        done = run_process(*command, **ascii_only)
        assert done.returncode == 0
        assert "\\" not in done.stdout
        whole = run_process(*command, **home.environ).stdout
        assert done.stdout == whole.translate(str.maketrans("·≥≈–", "->~-"))
    assert "≥" in whole


def test_projects_that_end_alike_are_told_apart_by_day(home):
    """As in the report itself: as much of each path as is needed."""
    now = time.time()
    for at, (project, tokens) in enumerate((("/srv/a/shop", 100_000), ("/srv/b/shop", 100_000))):
        day = format_time(now - at * 86_400)
        usage = {"input_tokens": tokens, "output_tokens": 0}
        home.machine.write(
            f"{SESSION[:-1]}{at}", reply(f"m{at}", usage, [], timestamp=day), project=project
        )
    lines = home.run("report", "--by", "day").splitlines()
    assert [line.split()[-1] for line in lines[2:4]] == ["a/shop", "b/shop"]


def test_agents_are_sent_a_message_only_where_the_budget_says_so(home):
    """A reminder of the session at work says with its next tool call that one waits, once."""
    session = HookedSession(home.machine.root, SESSION)
    session.state = home.machine.root / "state"
    session.installed = session.state / "claude-code.json"
    session.freeze()
    home.spend()
    session.tool(20_000)
    backend = LocalBackend(home.state)
    watch = partial(LevelWatch, backend, home.state, "serve")
    told = []
    for more in ("", "", "notify_agents = true", "notify_agents = true"):
        home.configure(daily(0.3, more))
        with as_a_process(environment(**home.environ)):
            watch(readings=[BudgetLook(home.state, backend, home.environ)]).look()
        told.append(session.tool(21_000).text)
    assert [bool(text) for text in told] == [False, False, True, False]
    assert "1 message waits" in told[2]
    waiting = json.loads(home.run("queue", "messages", SESSION, "--json"))
    assert waiting["text"].startswith("Budget daily: $0.30 of 0.30, 100 %, used up")
    backend.close()


def test_without_budgets_the_member_is_empty_and_nothing_is_said(home):
    home.configure("")
    assert json.loads(home.run("status", "--json"))["budgets"] == []
    assert "budgets" not in [
        one["check"] for one in json.loads(home.run("doctor", "--json"))["findings"]
    ]


def test_the_doctor_says_whether_a_process_looks(home):
    home.configure(daily(1))
    home.spend()
    assert "daily: no process looks what is spent" in home.run("doctor")
    with subprocess.Popen(
        [PROGRAM, "watch", "--json"],
        stdout=subprocess.DEVNULL,
        env=environment(**home.environ),
    ) as process:
        until(lambda: "daily" in home.readings(), process)
        assert "daily: $0.30 of 1, 30 %; levels are announced" in home.run("doctor")
        process.kill()
    home.configure("[budgets.daily]\nlimit = 1\n")
    done = run_process("doctor", **home.environ)
    assert "limit_usd" in done.stdout + done.stderr
    assert str(home.config) in done.stdout + done.stderr


@pytest.mark.parametrize("command", [("watch", "--json"), ("serve", "--port", "0")])
def test_a_wrong_setting_is_named_where_a_process_would_look(home, command):
    home.configure("[budgets.daily]\nlimit_usd = -1\n")
    done = run_process(*command, **home.environ)
    assert done.returncode != 0
    assert "budgets.daily.limit_usd=-1" in done.stderr
    assert str(home.config) in done.stderr


def test_metrics_over_a_socket(home):
    """The server that looks exports what it found."""
    home.configure(daily(1) + "[budgets.tokens]\nlimit_tokens = 1_000_000\n")
    home.spend(3)
    with subprocess.Popen(
        [PROGRAM, "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**home.environ),
    ) as process:
        address = next(
            found[0] for line in process.stdout if (found := re.search(r"http://[\d.:]+\d", line))
        )

        def scraped():
            token = (home.machine.root / "state" / "metrics.token").read_text().strip()
            request = urllib.request.Request(
                f"{address}/metrics", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.read().decode()

        until(lambda: announced(home), process)
        until(lambda: "ultramon_budget_used_ratio{" in scraped(), process)
        lines = scraped().splitlines()
        process.terminate()
        process.wait(30)
    assert 'ultramon_budget_used_ratio{budget="daily"} 0.9' in "\n".join(lines)
    assert 'ultramon_budget_limit_usd{budget="daily"} 1.0' in lines
    assert 'ultramon_budget_spent_tokens{budget="tokens"} 300000.0' in lines
    assert 'ultramon_budget_limit_tokens{budget="tokens"} 1e+06' in lines
