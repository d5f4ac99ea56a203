"""The page in a real browser: it equals `status --json`, runs nothing of agents, is reachable."""

from __future__ import annotations

import json
import os

import pytest
from helpers.html import HOSTILE
from helpers.planted_transcripts import Machine, used
from helpers.postgres_network import backend, network, wait_until  # noqa: F401
from helpers.program import run as run_program
from helpers.web_page import WebServing, browser  # noqa: F401

from ultramon import ContextConfig, create_context_monitor
from ultramon.backends.local.backend import LocalBackend
from ultramon.backends.opening import open_backend
from ultramon.state.budget_readings import BudgetReading, BudgetReadings, Scope
from ultramon.state.plan_limits import FIVE_HOURS, SEVEN_DAYS, PlanLimits, plan_limit
from ultramon.system.clock import SYSTEM_CLOCK
from ultramon.testing import make_record

CONFIG = ContextConfig(context_limit_tokens=10_000, save_interval_seconds=0.05)
UNKNOWN = ContextConfig(model="unheard-of", save_interval_seconds=0.05)
PATIENCE_MILLISECONDS = 60_000
ROWS = """() => Object.fromEntries([...document.querySelectorAll('tr[data-agent]')].map(row => [
  row.dataset.agent, [
    row.querySelector('.usage').innerText,
    row.querySelector('.usage').dataset.value ?? null,
    row.querySelector('.tokens').dataset.value ?? null,
    row.querySelector('.tokens').dataset.limit ?? null,
    row.dataset.level ?? null, row.dataset.liveness, row.dataset.phase,
    row.querySelector('.doing').innerText,
  ]]))"""
HAS_TOKENS = """([agent, tokens]) => document.querySelector(
  `tr[data-agent=${agent}] .tokens`)?.dataset.value === String(tokens)"""


def text(value):
    return None if value is None else str(value)


def wait_until_equal(page, **changes):
    """Wait until the page shows what `status --json` prints then; return its rows.

    The state is read anew each time: a monitor's last change is on disk up to
    `save_interval_seconds` after it was reported.
    """

    def equal():
        shown, expected = page.evaluate(ROWS), status_rows(**changes)
        return shown if shown == expected else None

    return wait_until(equal)


def status_rows(**changes):
    """Return the rows that the page must have, from what `status --json` prints."""
    changes.setdefault("ULTRAMON_STATE_DIR", os.environ["ULTRAMON_STATE_DIR"])
    printed = json.loads(run_program("status", "--json", **changes).stdout)
    rows = {}
    for one in printed["agents"]:
        ratio, limit = one["usageRatio"], one["contextLimit"]
        rows[one["agentId"]] = [
            "?" if ratio is None else f"{one['estimatedTokens'] * 100 // limit} %",
            text(ratio),
            text(one["estimatedTokens"]) if one["measuredAt"] else None,
            text(limit),
            one["thresholdStatus"],
            one["liveness"],
            one["phase"],
            one["currentTask"] or "",
        ]
    return rows


@pytest.fixture
def store(tmp_path):
    store = LocalBackend(str(tmp_path / "state"))
    yield store
    store.close()


@pytest.fixture
def open_page(browser):
    """Log a new browser window in; what its console says is collected on the page."""
    contexts = []

    def open_(serving, path="/", **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("dialog", lambda dialog: page.said.append(dialog.message))
        page.goto(serving.url + serving.link(SYSTEM_CLOCK.now()))
        assert page.url == f"{serving.url}/"
        if path != "/":
            page.goto(serving.url + path)
        return page

    yield open_
    for context in contexts:
        context.close()


def test_the_page_equals_status_while_agents_change(store, open_page):
    """Rows appear, change and go; what a person has focused stays focused."""
    monitors = [
        create_context_monitor(f"agent-{number}", CONFIG, backend=store).start()
        for number in range(4)
    ]
    unknown = create_context_monitor("unknown", UNKNOWN, backend=store).start()
    with WebServing(store) as serving:
        page = open_page(serving)
        wait_until_equal(page)
        page.locator("tr[data-agent=agent-2] a").focus()
        for round_ in range(1, 4):
            for number, monitor in enumerate(monitors):
                monitor.report_usage(input_tokens=(1 + number) * 700 * round_)
                monitor.set_current_task(f"step {round_}")
                monitor.update_heartbeat()
            unknown.report_usage(input_tokens=500 * round_)
            unknown.update_heartbeat()
            page.wait_for_function(HAS_TOKENS, arg=["agent-3", 2_800 * round_])
            page.wait_for_function(HAS_TOKENS, arg=["unknown", 500 * round_])
            rows = wait_until_equal(page)
            assert [rows[f"agent-{number}"][-1] for number in range(4)] == [f"step {round_}"] * 4
        focused = page.evaluate("document.activeElement.closest('tr')?.dataset.agent")
        assert focused == "agent-2"
        monitors.pop().stop()
        late = create_context_monitor("late", CONFIG, backend=store).start()
        page.locator("tr[data-agent=late]").wait_for()
        wait_until_equal(page)
        assert page.said == []
    for monitor in (*monitors, unknown, late):
        monitor.stop()


def test_the_page_shows_the_limits_of_a_plan_as_status_does(store, open_page):
    """They come and change while the page is open; a name runs nothing."""
    directory = os.environ["ULTRAMON_STATE_DIR"]

    def use(percent, ahead, account="/srv/<b>dev</b>/.claude"):
        now = SYSTEM_CLOCK.now()
        limits = [
            plan_limit(FIVE_HOURS, percent, now + ahead, now),
            plan_limit(SEVEN_DAYS, 41, now + 400_000, now),
        ]
        PlanLimits(directory).record("claude-code", account, limits, now)

    with WebServing(store, state_directory=directory) as serving:
        page = open_page(serving)
        assert page.locator(".limits").count() == 0
        use(62, 7_200)
        page.get_by_text("5h 62 %, resets").wait_for()
        assert page.locator(".limits .account").inner_text() == "/srv/<b>dev</b>/.claude"
        assert page.locator(".limits .limit").count() == 2
        use(105, 7_200)
        page.get_by_text("5h 105 %, resets").wait_for()
        printed = run_program("status", "--json", ULTRAMON_STATE_DIR=directory).stdout
        (shown,) = json.loads(printed)["plan"]
        assert shown["limits"]["five_hour"]["usedRatio"] == 1.05
        assert page.locator(".limits .bar").first.bounding_box()["width"] > 0
        use(3, 7_200, "/srv/dev/.codex")
        page.get_by_text("5h 3 %, resets").wait_for()
        assert page.locator(".limits").count() == 2
        assert page.said == []


def test_the_page_shows_budgets_as_status_does(store, open_page):
    """They come, change their level and go while the page is open; a scope runs nothing."""
    directory = os.environ["ULTRAMON_STATE_DIR"]

    def spend(usd, level, measured_ago=0):
        now = SYSTEM_CLOCK.now()
        reading = BudgetReading(
            "daily",
            Scope(),
            period="day",
            period_key="2026-11-26",
            starts_at=now - 3_600,
            ends_at=now + 90_000,
            unit="usd",
            limit=20,
            spent=usd,
            is_whole=False,
            levels=(80, 100),
            level=level,
            empties_at=now + 3_600,
            is_enforced=True,
            measured_at=now - measured_ago,
        )
        BudgetReadings(directory).write([reading])
        return reading, now

    with WebServing(store, state_directory=directory) as serving:
        page = open_page(serving)
        assert page.locator(".budget").count() == 0
        reading, now = spend(11.4, None)
        words = reading.words(now, utc=True).removeprefix("daily: ")
        assert words.startswith("today ≥ $11.40 of 20, 57 %, at this pace empty by ")
        page.get_by_text(words).wait_for()
        assert page.locator(".budget .account").inner_text() == "daily"
        assert page.locator(".budget .bar").first.bounding_box()["width"] > 0
        spend(21, "critical")
        page.get_by_text("used up: relay starts no further context").wait_for()
        assert page.locator(".budget.level-critical").count() == 1
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator(".budget .bar").bounding_box()["width"] > 50
        printed = run_program("status", "--json", ULTRAMON_STATE_DIR=directory).stdout
        assert [one["spentUsd"] for one in json.loads(printed)["budgets"]] == [21]
        spend(21, "critical", measured_ago=301)
        page.locator(".budget").wait_for(state="detached")
        assert page.said == []


def test_the_time_axis_of_a_job_stands_below_its_agents(store, open_page):
    """As the foot of one table, each column below its own."""
    for name in ("first", "second"):
        with create_context_monitor(name, CONFIG, backend=store) as monitor:
            monitor.report_usage(input_tokens=2_000)
    with WebServing(store) as serving:
        page = open_page(serving, "/jobs?run=default")
        rows, foot = page.locator("table.plan tbody"), page.locator("table.plan tfoot")
        assert rows.locator("tr").count() == 2
        above, below = rows.bounding_box(), foot.bounding_box()
        assert below["y"] >= above["y"] + above["height"]
        lane = rows.locator("td.time").first.bounding_box()
        axis = foot.locator("td").last.bounding_box()
        assert (axis["x"], axis["width"]) == (lane["x"], lane["width"])
        assert page.said == []


def test_the_page_equals_status_after_the_store_was_away(network, backend, open_page):
    """It says that the store does not answer and from when its content is, then continues."""
    direct = open_backend(network.url.replace(str(network.port), str(network._server)))
    monitor = create_context_monitor("one", CONFIG, backend=direct).start()
    monitor.report_usage(input_tokens=2_000)
    monitor.update_heartbeat()
    status = {"ULTRAMON_BACKEND": direct.whole_url}
    with WebServing(backend) as serving:
        page = open_page(serving)
        wait_until_equal(page, **status)
        network.refuse()
        page.get_by_text("The store does not answer, what is below is from").wait_for()
        assert page.locator("tr[data-agent=one]").count() == 1
        monitor.report_usage(input_tokens=8_000)
        monitor.update_heartbeat()
        network.accept()
        wait_until_equal(page, **status)
        assert page.get_by_text("The store does not answer").count() == 0
    monitor.stop()


def test_what_agents_wrote_runs_nowhere(store, open_page):
    """No dialog, no violation of the policy, no request elsewhere, on any page, live or not."""
    monitor = create_context_monitor("victim", CONFIG, label=HOSTILE[1], backend=store).start()
    monitor.plan(HOSTILE[:-1])
    with WebServing(store) as serving:
        page = open_page(serving)
        page.on("request", lambda request: page.said.append(request.url)
                if not request.url.startswith(serving.url) else None)  # fmt: skip
        for path in ("/agent?id=victim", "/jobs?run=default", "/events", "/"):
            page.goto(serving.url + path)
            for hostile in HOSTILE[:-1]:
                monitor.set_current_task(hostile)
                monitor.track_content("word " * 90, source=hostile)
                monitor.update_heartbeat()
            last = page.locator("[id^=beat]").get_attribute("id")
            page.wait_for_function("last => !document.getElementById(last)", arg=last)
        assert page.said == []
        # The policy itself: what would run if a text ever became an element.
        page.evaluate(
            """() => { const made = document.createElement('script');
            made.textContent = 'window.ran = true'; document.body.append(made) }"""
        )
        assert page.evaluate("window.ran") is None
        assert any("Content Security Policy" in words for words in page.said)
    monitor.stop()


@pytest.mark.slow
def test_a_fleet_with_all_its_columns_fits_every_screen(store, open_page, tmp_path):
    """A session at work fills each of them; what needs a person is never beyond the edge."""
    session = "635cef80-ed19-59f7-8132-532ddb2ac3b2"
    transcript = Machine(tmp_path).write(session, used("m1", 150_000), used("m2", 181_200))
    limit = {"turns": 30, "turnsLow": 18, "turnsHigh": 60, "seconds": 4.0}
    record = make_record(
        session, at=SYSTEM_CLOCK.now(), run="claude-code", host="claude-code", session_id=session,
        label="shop: Recompute VAT on invoices", phase="waiting", cwd="/home/mira/shop",
        current_task="recompute the credit notes", tasks_completed=14, tasks_total=17,
        measured_at=SYSTEM_CLOCK.now(), estimated_tokens=981_200, context_limit=1_000_000,
        usage_ratio=0.98, threshold_status="critical", action="force_return",
        forecast={"tokensPerTurn": 9e3, "secondsPerTurn": 9.0, "limit": limit, "rungs": {}},
        extra={"claudeCode": {"transcriptPath": str(transcript), "waitsFor": "permission"}},
    )  # fmt: skip
    with store.directory.locked(session, 5.0):
        store.directory.replace(record, durable=False)
    with WebServing(store) as serving:
        page = open_page(serving)
        page.get_by_text("needs you: permission").wait_for()
        page.locator(".cost", has_text="$").wait_for()
        for width in (390, 600, 768, 860, 927, 930, 1_000, 1_087, 1_090, 1_215, 1_220, 1_280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("td.runway").is_visible(), width
            box = page.locator("td.state").bounding_box()
            assert box["x"] + box["width"] <= width
    assert page.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_is_reached_by_keyboard(store, open_page, scheme):
    """Nothing is wider than the screen; Tab and Enter lead to an agent and back."""
    long = "a very long name of a task without any end " * 4
    monitor = create_context_monitor("scout", CONFIG, label=long, backend=store).start()
    monitor.plan([long, "x" * 150])
    monitor.set_current_task("y" * 150)
    monitor.report_usage(input_tokens=8_800)
    monitor.record_compaction(tokens_after=900)
    monitor.update_heartbeat()
    with WebServing(store) as serving:
        phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": scheme}
        page = open_page(serving, **phone)
        for path in ("/agent?id=scout", "/jobs?run=default", "/events", "/"):
            page.goto(serving.url + path)
            page.locator("h1").wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
        reached = []
        while not reached or reached[-1] != "/agent?id=scout":
            assert len(reached) < 20, reached
            page.keyboard.press("Tab")
            reached.append(page.evaluate("document.activeElement.getAttribute('href')"))
        assert reached[:4] == ["#content", "/", "/jobs", "/events"]
        page.keyboard.press("Enter")
        page.wait_for_url("**/agent?id=scout")
        page.get_by_role("img", name="Tokens over time").wait_for()
        page.go_back()
        page.locator("tr[data-agent=scout]").wait_for()
        assert page.said == []
    monitor.stop()


def test_a_page_says_when_nothing_comes_any_more(store, open_page):
    """The style sheet knows: each message starts its 20 s anew, and nothing has to run for that."""
    with WebServing(store) as serving:
        page = open_page(serving)
        silence = page.locator(".silent")
        assert not silence.is_visible()
        last = silence.get_attribute("id")
        page.wait_for_function("last => !document.getElementById(last)", arg=last)
        serving.stop()
        page.evaluate("document.getAnimations().forEach(one => one.finish())")
        silence.wait_for(state="visible")
